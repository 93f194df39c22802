//! Pictures of runs: how late how many were, and how it went on over time. Plain SVG, so that a browser and a Markdown page can show it.

use std::fmt::Write as _;

use super::quantiles::{Quantiles, shown};
use super::report::{Moment, Report};

/// One line of a picture.
#[derive(Clone, Debug)]
pub struct Curve<'a> {
    pub label: &'a str,
    pub spans: &'a Quantiles,
    pub series: &'a [Moment],
}

const WIDTH: f64 = 1080.0;
const PANEL_HEIGHT: f64 = 300.0;
const PANEL_WIDTH: f64 = 450.0;
const LEFT: f64 = 64.0;
const TOP: f64 = 64.0;
const GAP: f64 = 90.0;
/// Told apart by most eyes, in print too.
const COLOURS: [&str; 6] = ["#0b5fa5", "#d1495b", "#2e8b57", "#e08e0b", "#6a4c93", "#555555"];
/// Below half a millisecond everything is drawn alike: append times are whole milliseconds.
const MILLIS_MIN: f64 = 0.5;
/// The right end of the distribution's axis: a share of 0.9999.
const NINES_MAX: f64 = 4.2;

/// The picture of one report, when it has a distribution.
pub fn of_report(report: &Report) -> Option<String> {
    let spans = report.spans.as_ref()?;
    let settings: Vec<String> = report.settings.iter().map(|(name, value)| format!("{name} {value}")).collect();
    let title = format!("{} ({})", report.scenario, settings.join(", "));
    Some(picture(&title, &report.measured, &[Curve { label: "punctual", spans, series: &report.series }]))
}

/// A picture of several runs beside each other. `measured` names what the axis of milliseconds shows.
pub fn picture(title: &str, measured: &str, curves: &[Curve<'_>]) -> String {
    let height = TOP + PANEL_HEIGHT + 70.0 + 18.0 * f64::from(u32::try_from(curves.len()).unwrap_or(0));
    let scale = Scale::of(curves);
    let mut svg = Svg::new(WIDTH, height);
    svg.text((LEFT, 24.0), "title", title);
    let distribution = Panel { left: LEFT, scale };
    let series = Panel { left: LEFT + PANEL_WIDTH + GAP, scale };
    distribution.frame(&mut svg, &format!("{measured} in ms; share of the tasks that it does not pass"));
    for (share, label) in [(0.0, "0"), (0.9, "90 %"), (0.99, "99 %"), (0.999, "99.9 %"), (0.9999, "99.99 %")] {
        distribution.tick(&mut svg, nines(share) / NINES_MAX, label);
    }
    series.frame(&mut svg, "over time, in seconds: p99 bold, p50 thin");
    let end = curves.iter().flat_map(|curve| curve.series).map(|moment| moment.at).fold(1.0, f64::max);
    for step in [0.0, 0.25, 0.5, 0.75, 1.0] {
        series.tick(&mut svg, step, &shown(step * end));
    }
    for (curve, colour) in curves.iter().zip(COLOURS.iter().cycle()) {
        let points = curve.spans.curve.iter().map(|(share, millis)| (nines(*share) / NINES_MAX, *millis));
        distribution.line(&mut svg, colour, 2.0, points);
        let moments = || curve.series.iter().filter(|moment| moment.count > 0);
        series.line(&mut svg, colour, 2.0, moments().map(|moment| (moment.at / end, moment.p99)));
        series.line(&mut svg, colour, 0.8, moments().map(|moment| (moment.at / end, moment.p50)));
    }
    let mut y = TOP + PANEL_HEIGHT + 52.0;
    for (curve, colour) in curves.iter().zip(COLOURS.iter().cycle()) {
        svg.swatch((LEFT, y - 9.0), colour);
        svg.text(
            (LEFT + 18.0, y),
            "label",
            &format!("{}: p50 / p90 / p99 / p99.9 / max {} ms", curve.label, curve.spans.short()),
        );
        y += 18.0;
    }
    svg.end()
}

/// Where a share stands on an axis on which each nine takes as much room as the one before.
fn nines(share: f64) -> f64 {
    (-(1.0 - share).max(1e-9).log10()).min(NINES_MAX)
}

/// The axis of milliseconds: logarithmic, from half a millisecond up to a power of ten that holds all.
#[derive(Clone, Copy, Debug)]
struct Scale {
    decades: f64,
}

impl Scale {
    fn of(curves: &[Curve<'_>]) -> Self {
        let max = curves.iter().map(|curve| curve.spans.max).fold(10.0, f64::max);
        Self { decades: max.log10().ceil() - MILLIS_MIN.log10() }
    }

    /// From 0 at the bottom to 1 at the top.
    fn place(self, millis: f64) -> f64 {
        (millis.max(MILLIS_MIN).log10() - MILLIS_MIN.log10()) / self.decades
    }
}

struct Panel {
    left: f64,
    scale: Scale,
}

impl Panel {
    fn frame(&self, svg: &mut Svg, caption: &str) {
        svg.text((self.left, TOP - 12.0), "caption", caption);
        let mut millis = 1.0;
        while self.scale.place(millis) <= 1.0001 {
            let y = self.y(millis);
            svg.rule((self.left, y), (self.left + PANEL_WIDTH, y));
            svg.text((self.left - 8.0, y + 4.0), "tick-y", &shown(millis));
            millis *= 10.0;
        }
        let bottom = TOP + PANEL_HEIGHT;
        svg.rule((self.left, bottom), (self.left + PANEL_WIDTH, bottom));
        svg.rule((self.left, TOP), (self.left, bottom));
    }

    fn tick(&self, svg: &mut Svg, place: f64, label: &str) {
        svg.text((self.left + place * PANEL_WIDTH, TOP + PANEL_HEIGHT + 18.0), "tick-x", label);
    }

    fn line(&self, svg: &mut Svg, colour: &str, width: f64, points: impl Iterator<Item = (f64, f64)>) {
        svg.line(points.map(|(place, millis)| (self.left + place * PANEL_WIDTH, self.y(millis))), colour, width);
    }

    fn y(&self, millis: f64) -> f64 {
        TOP + PANEL_HEIGHT * (1.0 - self.scale.place(millis))
    }
}

struct Svg(String);

impl Svg {
    fn new(width: f64, height: f64) -> Self {
        let mut svg = Self(String::new());
        svg.add(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"sans-serif\" font-size=\"12\">\n<style>.title{{font-size:15px;font-weight:bold}}.caption{{font-weight:bold}}.tick-y{{text-anchor:end}}.tick-x{{text-anchor:middle}}</style>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
        ));
        svg
    }

    fn text(&mut self, at: (f64, f64), class: &str, text: &str) {
        let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        self.add(format_args!("<text x=\"{:.1}\" y=\"{:.1}\" class=\"{class}\">{text}</text>\n", at.0, at.1));
    }

    fn rule(&mut self, from: (f64, f64), to: (f64, f64)) {
        let line = format_args!(
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"#cccccc\"/>\n",
            from.0, from.1, to.0, to.1
        );
        self.add(line);
    }

    fn swatch(&mut self, at: (f64, f64), colour: &str) {
        self.add(format_args!("<rect x=\"{:.1}\" y=\"{:.1}\" width=\"12\" height=\"10\" fill=\"{colour}\"/>\n", at.0, at.1));
    }

    fn line(&mut self, points: impl Iterator<Item = (f64, f64)>, colour: &str, width: f64) {
        let places: Vec<String> = points.map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let places = places.join(" ");
        self.add(format_args!(
            "<polyline points=\"{places}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width:.1}\" stroke-linejoin=\"round\"/>\n"
        ));
    }

    fn add(&mut self, part: std::fmt::Arguments<'_>) {
        let written = self.0.write_fmt(part);
        debug_assert!(written.is_ok(), "a string takes all that is written");
    }

    fn end(mut self) -> String {
        self.0.push_str("</svg>\n");
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::super::quantiles::Spans;
    use super::*;

    fn quantiles(millis: impl IntoIterator<Item = u64>) -> Quantiles {
        let mut spans = Spans::default();
        millis.into_iter().for_each(|millis| spans.record_millis(millis));
        spans.quantiles().unwrap()
    }

    #[test]
    fn each_run_has_its_line_in_both_panels_and_its_figures() {
        let (ours, theirs) = (quantiles(0..100), quantiles(0..3000));
        let series = [Moment { count: 1, p99: 3.0, ..Moment::default() }];
        let curves =
            [Curve { label: "ours", spans: &ours, series: &series }, Curve { label: "theirs", spans: &theirs, series: &[] }];
        let svg = picture("a < b & c", "append - due", &curves);
        assert_eq!(svg.matches("<polyline").count(), 6);
        assert!(svg.contains("a &lt; b &amp; c"));
        assert!(svg.contains(&format!("ours: p50 / p90 / p99 / p99.9 / max {} ms", ours.short())));
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    }

    #[test]
    fn every_point_is_inside_of_the_picture() {
        let wide = quantiles([0, 1, 10, 100, 3_000_000]);
        let moment = |at, p99| Moment { at, count: 1, p99, ..Moment::default() };
        let series = [moment(0.0, 0.0), moment(60.0, 3_000_000.0)];
        let svg = picture("t", "m", &[Curve { label: "l", spans: &wide, series: &series }]);
        let lines = svg.lines().filter_map(|line| line.strip_prefix("<polyline points=\"")?.split('"').next());
        for point in lines.flat_map(|points| points.split(' ')) {
            let (x, y) = point.split_once(',').unwrap();
            let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
            assert!((0.0..=WIDTH).contains(&x) && (TOP - 0.1..=TOP + PANEL_HEIGHT + 0.1).contains(&y), "{point}");
        }
    }

    #[test]
    fn each_nine_takes_as_much_room() {
        let places = [0.0, 0.9, 0.99, 0.999].map(nines);
        for (place, wanted) in places.iter().zip([0.0, 1.0, 2.0, 3.0]) {
            assert!((place - wanted).abs() < 1e-6);
        }
        assert_eq!(nines(1.0), NINES_MAX);
    }
}
