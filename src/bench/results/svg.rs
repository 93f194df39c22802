//! Draws runs as plain SVG, which browsers and Markdown pages can show: the distribution of
//! lateness, and its course over time.
//!
//! Drawn without `plotters`: `bench` is part of the server's binary, which should not carry a
//! drawing library for two kinds of curves.

use std::fmt::Write as _;

use super::quantiles::{Quantiles, shown};
use super::report::{BenchReport, SeriesPoint};

/// One curve of a picture.
#[derive(Clone, Debug)]
pub struct Curve<'a> {
    pub label: &'a str,
    /// The distribution. With `None` only the course over time is drawn.
    pub spans: Option<&'a Quantiles>,
    pub series: &'a [SeriesPoint],
}

const WIDTH: f64 = 1080.0;
const PANEL_HEIGHT: f64 = 300.0;
const PANEL_WIDTH: f64 = 450.0;
const LEFT: f64 = 64.0;
const TOP: f64 = 64.0;
const GAP: f64 = 90.0;
/// Colours that most eyes can distinguish, in print too.
const COLOURS: [&str; 6] = ["#0b5fa5", "#d1495b", "#2e8b57", "#e08e0b", "#6a4c93", "#555555"];
/// Lower end of the axis: append times are whole milliseconds, so smaller values are all drawn at
/// 0.5 ms.
const MILLIS_MIN: f64 = 0.5;
/// The right end of the distribution's axis: just beyond a share of 0.9999.
const NINES_MAX: f64 = 4.2;

/// Draws one report. Returns `None` when it has no data to draw.
pub fn of_report(report: &BenchReport) -> Option<String> {
    let spans = report.spans.as_ref();
    if spans.is_none() && report.series.is_empty() {
        return None;
    }
    let settings: Vec<String> =
        report.settings.iter().map(|(name, value)| format!("{name} {value}")).collect();
    let title = format!("{} ({})", report.scenario, settings.join(", "));
    Some(picture(
        &title,
        &report.measured,
        &[Curve { label: "punctual", spans, series: &report.series }],
    ))
}

/// Draws several runs beside each other. `measured` is the label of the axis of milliseconds.
pub fn picture(title: &str, measured: &str, curves: &[Curve<'_>]) -> String {
    let height =
        TOP + PANEL_HEIGHT + 70.0 + 18.0 * f64::from(u32::try_from(curves.len()).unwrap_or(0));
    let scale = Scale::of_spans(curves);
    // A series that counts only appends has rates and no lateness.
    let has_lateness = curves.iter().flat_map(|curve| curve.series).any(|moment| moment.max > 0.0);
    let mut svg = Svg::new(WIDTH, height);
    svg.text((LEFT, 24.0), "title", title);
    let distribution = Panel { left: LEFT, scale };
    let series = Panel {
        left: LEFT + PANEL_WIDTH + GAP,
        scale: if has_lateness { scale } else { Scale::of_rates(curves) },
    };
    distribution.frame(&mut svg, &format!("{measured} in ms; share of the tasks up to this value"));
    for (share, label) in
        [(0.0, "0"), (0.9, "90 %"), (0.99, "99 %"), (0.999, "99.9 %"), (0.9999, "99.99 %")]
    {
        distribution.tick(&mut svg, nines(share) / NINES_MAX, label);
    }
    let caption = if has_lateness {
        "over time, in seconds: p99 bold, p50 thin"
    } else {
        "tasks per second, over time in seconds"
    };
    series.frame(&mut svg, caption);
    let end =
        curves.iter().flat_map(|curve| curve.series).map(|moment| moment.at).fold(1.0, f64::max);
    for step in [0.0, 0.25, 0.5, 0.75, 1.0] {
        series.tick(&mut svg, step, &shown(step * end));
    }
    for (curve, colour) in curves.iter().zip(COLOURS.iter().cycle()) {
        let points = curve
            .spans
            .iter()
            .flat_map(|spans| &spans.curve)
            .map(|(share, millis)| (nines(*share) / NINES_MAX, *millis));
        distribution.line(&mut svg, colour, 2.0, points);
        let moments = || curve.series.iter().filter(|moment| moment.count > 0 || !has_lateness);
        let bold = |moment: &SeriesPoint| if has_lateness { moment.p99 } else { moment.rate };
        series.line(&mut svg, colour, 2.0, moments().map(|moment| (moment.at / end, bold(moment))));
        if has_lateness {
            series.line(
                &mut svg,
                colour,
                0.8,
                moments().map(|moment| (moment.at / end, moment.p50)),
            );
        }
    }
    let mut y = TOP + PANEL_HEIGHT + 52.0;
    for (curve, colour) in curves.iter().zip(COLOURS.iter().cycle()) {
        svg.swatch((LEFT, y - 9.0), colour);
        let spans = curve
            .spans
            .map(|spans| format!(": p50 / p90 / p99 / p99.9 / max {} ms", spans.short()))
            .unwrap_or_default();
        svg.text((LEFT + 18.0, y), "label", &format!("{}{spans}", curve.label));
        y += 18.0;
    }
    svg.end()
}

/// Returns the position of a share on an axis on which each further nine takes the same width.
fn nines(share: f64) -> f64 {
    (-(1.0 - share).max(1e-9).log10()).min(NINES_MAX)
}

/// The vertical axis.
#[derive(Clone, Copy, Debug)]
enum Scale {
    /// Milliseconds on a logarithmic scale, from 0.5 ms to a power of ten above all values.
    Millis { decades: f64 },
    /// A rate per second, from zero.
    Rate { max: f64 },
}

impl Scale {
    fn of_spans(curves: &[Curve<'_>]) -> Self {
        let max = curves
            .iter()
            .filter_map(|curve| curve.spans)
            .map(|spans| spans.max)
            .fold(10.0, f64::max);
        Self::Millis { decades: max.log10().ceil() - MILLIS_MIN.log10() }
    }

    fn of_rates(curves: &[Curve<'_>]) -> Self {
        let max = curves
            .iter()
            .flat_map(|curve| curve.series)
            .map(|moment| moment.rate)
            .fold(1.0, f64::max);
        Self::Rate { max }
    }

    /// Returns the position of a value, from 0 at the bottom to 1 at the top.
    fn place(self, value: f64) -> f64 {
        match self {
            Self::Millis { decades } => {
                (value.max(MILLIS_MIN).log10() - MILLIS_MIN.log10()) / decades
            }
            Self::Rate { max } => value / max,
        }
    }

    /// Returns the values of the horizontal grid lines.
    fn marks(self) -> Vec<f64> {
        match self {
            Self::Millis { .. } => (0..8)
                .map(|power| 10_f64.powi(power))
                .filter(|millis| self.place(*millis) <= 1.0001)
                .collect(),
            Self::Rate { max } => [0.25, 0.5, 0.75, 1.0].map(|share| share * max).to_vec(),
        }
    }
}

struct Panel {
    left: f64,
    scale: Scale,
}

impl Panel {
    fn frame(&self, svg: &mut Svg, caption: &str) {
        svg.text((self.left, TOP - 12.0), "caption", caption);
        for mark in self.scale.marks() {
            let y = self.y(mark);
            svg.rule((self.left, y), (self.left + PANEL_WIDTH, y));
            svg.text((self.left - 8.0, y + 4.0), "tick-y", &shown(mark));
        }
        let bottom = TOP + PANEL_HEIGHT;
        svg.rule((self.left, bottom), (self.left + PANEL_WIDTH, bottom));
        svg.rule((self.left, TOP), (self.left, bottom));
    }

    fn tick(&self, svg: &mut Svg, place: f64, label: &str) {
        svg.text((self.left + place * PANEL_WIDTH, TOP + PANEL_HEIGHT + 18.0), "tick-x", label);
    }

    fn line(
        &self,
        svg: &mut Svg,
        colour: &str,
        width: f64,
        points: impl Iterator<Item = (f64, f64)>,
    ) {
        svg.line(
            points.map(|(place, value)| (self.left + place * PANEL_WIDTH, self.y(value))),
            colour,
            width,
        );
    }

    fn y(&self, value: f64) -> f64 {
        TOP + PANEL_HEIGHT * (1.0 - self.scale.place(value))
    }
}

struct Svg(String);

impl Svg {
    fn new(width: f64, height: f64) -> Self {
        let mut svg = Self(String::new());
        svg.add(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <style>.title{{font-size:15px;font-weight:bold}}.caption{{font-weight:bold}}\
             .tick-y{{text-anchor:end}}.tick-x{{text-anchor:middle}}</style>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
        ));
        svg
    }

    fn text(&mut self, at: (f64, f64), class: &str, text: &str) {
        let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        self.add(format_args!(
            "<text x=\"{:.1}\" y=\"{:.1}\" class=\"{class}\">{text}</text>\n",
            at.0, at.1
        ));
    }

    fn rule(&mut self, from: (f64, f64), to: (f64, f64)) {
        let line = format_args!(
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"#cccccc\"/>\n",
            from.0, from.1, to.0, to.1
        );
        self.add(line);
    }

    fn swatch(&mut self, at: (f64, f64), colour: &str) {
        self.add(format_args!(
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"12\" height=\"10\" fill=\"{colour}\"/>\n",
            at.0, at.1
        ));
    }

    fn line(&mut self, points: impl Iterator<Item = (f64, f64)>, colour: &str, width: f64) {
        let places: Vec<String> = points.map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let places = places.join(" ");
        self.add(format_args!(
            "<polyline points=\"{places}\" fill=\"none\" stroke=\"{colour}\" \
             stroke-width=\"{width:.1}\" stroke-linejoin=\"round\"/>\n"
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
    use super::*;
    use crate::bench::results::quantiles::Spans;

    fn quantiles(millis: impl IntoIterator<Item = u64>) -> Quantiles {
        let mut spans = Spans::default();
        millis.into_iter().for_each(|millis| spans.record_millis(millis));
        spans.quantiles().unwrap()
    }

    #[test]
    fn each_run_has_its_line_in_both_panels_and_its_figures() {
        let (ours, theirs) = (quantiles(0..100), quantiles(0..3000));
        let series = [SeriesPoint { count: 1, p99: 3.0, max: 3.0, ..SeriesPoint::default() }];
        let curve = |label, spans, series| Curve { label, spans: Some(spans), series };
        let curves = [curve("ours", &ours, &series[..]), curve("theirs", &theirs, &[])];
        let svg = picture("a < b & c", "append - due", &curves);
        assert_eq!(svg.matches("<polyline").count(), 6);
        assert!(svg.contains("a &lt; b &amp; c"));
        assert!(svg.contains(&format!("ours: p50 / p90 / p99 / p99.9 / max {} ms", ours.short())));
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    }

    #[test]
    fn every_point_is_inside_of_the_picture() {
        let wide = quantiles([0, 1, 10, 100, 3_000_000]);
        let moment =
            |at, p99| SeriesPoint { at, count: 1, p99, max: p99, ..SeriesPoint::default() };
        let series = [moment(0.0, 0.0), moment(60.0, 3_000_000.0)];
        inside(&picture("t", "m", &[Curve { label: "l", spans: Some(&wide), series: &series }]));
    }

    #[test]
    fn a_series_without_lateness_shows_its_rates() {
        let moment = |at, rate| SeriesPoint { at, rate, ..SeriesPoint::default() };
        let series = [moment(0.0, 0.0), moment(0.2, 150_000.0), moment(0.4, 80_000.0)];
        let svg = picture("t", "m", &[Curve { label: "l", spans: None, series: &series }]);
        assert!(svg.contains("tasks per second") && svg.contains(">150000<"));
        inside(&svg);
    }

    fn inside(svg: &str) {
        let lines = svg
            .lines()
            .filter_map(|line| line.strip_prefix("<polyline points=\"")?.split('"').next());
        for point in lines.flat_map(|points| points.split(' ')).filter(|point| !point.is_empty()) {
            let (x, y) = point.split_once(',').unwrap();
            let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
            assert!(
                (0.0..=WIDTH).contains(&x) && (TOP - 0.1..=TOP + PANEL_HEIGHT + 0.1).contains(&y),
                "{point}"
            );
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
