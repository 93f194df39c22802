//! The frame of all pages: head, navigation, messages, and the page of the login.

use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde_json::Value;

use super::assets::Asset;
use super::format::{path, text};

/// The path under which all pages are.
pub const ROOT: &str = "/console";

/// A page before its frame is around it.
#[derive(Debug)]
pub struct Page {
    pub section: Section,
    pub title: String,
    pub body: Markup,
    /// True for a page that the script refreshes while a reader looks on.
    pub is_live: bool,
}

/// The pages of the navigation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Section {
    Now,
    Topics,
    Ahead,
    Tasks,
    Dead,
    Schedules,
    /// Outboxes and intake topics.
    Inbound,
    Login,
}

impl Section {
    const SHOWN: [Self; 7] = [
        Self::Now,
        Self::Topics,
        Self::Ahead,
        Self::Tasks,
        Self::Dead,
        Self::Schedules,
        Self::Inbound,
    ];

    const fn title(self) -> &'static str {
        match self {
            Self::Now => "Now",
            Self::Topics => "Topics",
            Self::Ahead => "Ahead",
            Self::Tasks => "Tasks",
            Self::Dead => "Dead letters",
            Self::Schedules => "Schedules",
            Self::Inbound => "Outboxes and intake",
            Self::Login => "Log in",
        }
    }

    /// Returns true for a page that is made of the state of the cluster.
    const fn needs_cluster(self) -> bool {
        matches!(self, Self::Now | Self::Inbound)
    }

    /// Returns the path of the page.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Now => ROOT,
            Self::Topics => "/console/topics",
            Self::Ahead => "/console/ahead",
            Self::Tasks => "/console/tasks",
            Self::Dead => "/console/dead",
            Self::Schedules => "/console/schedules",
            Self::Inbound => "/console/inbound",
            Self::Login => "/console/login",
        }
    }
}

/// The person or program that reads a page.
#[derive(Clone, Debug)]
pub struct Reader {
    /// The name of the principal. `None` on a node without authentication.
    pub name: Option<String>,
    /// True for a reader who came in by the login, and so can log out.
    pub has_session: bool,
    /// False at a port without the state of the cluster, which lacks the page Now and that of
    /// outboxes and intake topics.
    pub has_now: bool,
    /// The token that each form sends back.
    pub csrf: String,
}

/// The reason why the API did not answer with what a page shows.
#[derive(Clone, PartialEq, Debug)]
pub struct Refused {
    pub status: u16,
    /// The problem as the API writes it.
    pub problem: Value,
}

impl Refused {
    pub fn new(status: u16, title: &str, detail: &str) -> Self {
        Self { status, problem: serde_json::json!({ "title": title, "detail": detail }) }
    }

    /// Writes the problem as a notice on a page.
    pub fn notice(&self) -> Markup {
        html! {
            div.notice role="note" {
                p { strong { (text(&self.problem, "title")) } " (" (self.status) ")" }
                p { (text(&self.problem, "detail")) }
            }
        }
    }

    /// Returns the page of a refusal that leaves nothing to show.
    pub fn page(&self, section: Section) -> Page {
        let body = html! { h1 { (section.title()) } (self.notice()) };
        Page { section, title: section.title().to_owned(), body, is_live: false }
    }
}

/// The answer of the API: its JSON, or the reason why there is none.
pub type Answered = Result<Value, Refused>;

/// Writes a page as HTML. Without a reader, there is no navigation.
pub fn write(page: &Page, reader: Option<&Reader>) -> String {
    let document = html! {
        (DOCTYPE)
        html lang="en" {
            (head(&page.title))
            body {
                a.skip href="#main" { "Skip to the content" }
                header {
                    a.brand href=(ROOT) { "Punctual" }
                    @if let Some(reader) = reader {
                        (navigation(page.section, reader.has_now))
                        (who(reader))
                    }
                }
                main #main tabindex="-1" {
                    @if page.is_live { (refresh()) }
                    div #live data-live[page.is_live] { (page.body) }
                }
                footer { p { "All times are UTC." } }
            }
        }
    };
    document.into_string()
}

/// Writes the page that loads `target` again as a request of this site. A link on another site
/// leads here: browsers send the session only with requests from this site.
pub fn continued(target: &str) -> String {
    let document = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="refresh" content={ "0; url=" (target) };
                title { "Punctual" }
            }
            body { main { p { a href=(target) { "Continue to the console" } } } }
        }
    };
    document.into_string()
}

fn head(title: &str) -> Markup {
    html! {
        head {
            meta charset="utf-8";
            meta name="viewport" content="width=device-width, initial-scale=1";
            meta name="color-scheme" content="light dark";
            title { (title) " – Punctual" }
            link rel="stylesheet" href=(Asset::Style.path());
            link rel="icon" type="image/svg+xml" href=(Asset::Icon.path());
            script defer src=(Asset::Script.path()) {}
        }
    }
}

fn navigation(current: Section, has_now: bool) -> Markup {
    let shown = Section::SHOWN.into_iter().filter(|section| has_now || !section.needs_cluster());
    html! {
        nav aria-label="Pages" {
            ul {
                @for section in shown {
                    li {
                        @let mark = (section == current).then_some("page");
                        a href=(section.path()) aria-current=[mark] { (section.title()) }
                    }
                }
            }
        }
    }
}

fn who(reader: &Reader) -> Markup {
    html! {
        div.who {
            @match (&reader.name, reader.has_session) {
                (None, _) => span.quiet { "no login on this node" },
                (Some(name), true) => {
                    span { (name) }
                    form method="post" action="/console/logout" {
                        (csrf(reader))
                        button type="submit" { "Log out" }
                    }
                },
                (Some(name), false) => {
                    span { (name) }
                    a href=(Section::Login.path()) { "Log in" }
                },
            }
        }
    }
}

/// The switch of the refresh. Without the script it stays hidden.
fn refresh() -> Markup {
    html! {
        p.refresh hidden {
            button type="button" #refresh aria-pressed="true" { "Refresh every 5 s" }
            " "
            span #stale.bad role="status" hidden { "Not refreshed: these figures are old." }
            " "
            span #held.quiet role="status" hidden { "Waits while you use the figures." }
        }
    }
}

/// Writes the hidden field, the proof that a form came from a page of this node.
pub fn csrf(reader: &Reader) -> Markup {
    html! { input type="hidden" name="csrf" value=(reader.csrf); }
}

/// Returns the page of the login, which leads on to the page at `next`.
pub fn login(reader: &Reader, next: &str, failed: Option<&Refused>) -> Page {
    let body = html! {
        h1 { "Log in" }
        @if let Some(refused) = failed {
            div.notice role="alert" { p { (text(&refused.problem, "detail")) } }
        }
        form.stacked method="post" action=(Section::Login.path()) {
            (csrf(reader))
            input type="hidden" name="next" value=(next);
            label for="token" { "Token" }
            input #token type="password" name="token" required autocomplete="off"
                autofocus spellcheck="false";
            p.quiet {
                "The token of a principal of this node. The session is a sealed cookie that ends "
                "after 8 hours."
            }
            button.primary type="submit" { "Log in" }
        }
    };
    Page { section: Section::Login, title: "Log in".to_owned(), body, is_live: false }
}

/// Writes a form that asks for a topic.
pub fn topic_form(target: Section, topic: &str) -> Markup {
    html! {
        form.inline method="get" action=(target.path()) role="search" {
            label for="topic" { "Topic" }
            input #topic name="topic" value=(topic) autocomplete="off" spellcheck="false";
            button type="submit" { "Show" }
        }
    }
}

/// Writes the links of the pages about a topic.
pub fn topic_links(topic: &str) -> Markup {
    let of = |section: Section| super::format::with_query(section.path(), &[("topic", topic)]);
    html! {
        a href=(of(Section::Tasks)) { "tasks" } " · "
        a href=(of(Section::Ahead)) { "ahead" } " · "
        a href=(of(Section::Dead)) { "dead letters" } " · "
        a href=(of(Section::Schedules)) { "schedules" }
    }
}

/// Says that the topic of a page is not known, when the answer of the API says so.
pub fn unknown_topic(answer: &Value) -> Markup {
    let is_unknown = answer.get("topic_known").and_then(Value::as_bool) == Some(false);
    html! {
        @if is_unknown {
            div.notice role="note" {
                p {
                    "This topic is not known: Kafka does not have it, and no pending task or dead "
                    "letter is for it. It may be misspelt."
                }
            }
        }
    }
}

/// Writes a table that scrolls alone when too wide.
pub fn table(caption: &str, heads: &[&str], rows: &Markup) -> Markup {
    html! {
        div.wide tabindex="0" role="region" aria-label=(caption) {
            table {
                caption { (caption) }
                thead { tr { @for head in heads { th scope="col" { (head) } } } }
                tbody { (rows) }
            }
        }
    }
}

/// Writes a call of the REST API as a shell sample that stays folded.
pub fn sample(call: &str) -> Markup {
    html! {
        details {
            summary { "The same with curl, in bash or zsh" }
            pre tabindex="0" { code { (call) } }
        }
    }
}

/// Writes a list of terms and their values.
pub fn facts(facts: &[(&str, Markup)]) -> Markup {
    html! {
        dl.facts {
            @for (term, value) in facts { div { dt { (term) } dd { (value) } } }
        }
    }
}

/// Returns the address of the page of a task.
pub fn task_path(id: &str) -> String {
    path(&["console", "tasks", id])
}

/// Returns a text as markup, escaped.
pub fn escaped(text: &str) -> Markup {
    html! { (text) }
}

/// Returns nothing.
pub fn nothing() -> Markup {
    PreEscaped(String::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = r#"<script>alert("1")</script>"#;

    #[test]
    fn a_page_escapes_what_it_shows() {
        let refused = Refused::new(403, HOSTILE, HOSTILE);
        let name = Some(HOSTILE.to_owned());
        let reader = Reader { name, has_session: true, has_now: true, csrf: "\"><b>".to_owned() };
        let mut page = refused.page(Section::Now);
        page.title = HOSTILE.to_owned();
        let text =
            write(&page, Some(&reader)) + &write(&login(&reader, HOSTILE, Some(&refused)), None);
        assert!(!text.contains("<script>") && !text.contains("\"><b>"), "{text}");
        assert!(!text.contains(" style=") && !text.contains(" onclick="), "the policy forbids it");
        assert!(!continued("/console\"><b>").contains("<b>"));
    }

    #[test]
    fn the_current_page_is_marked() {
        let page = Refused::new(503, "a", "b").page(Section::Dead);
        let text = write(&page, Some(&reader(true)));
        assert!(text.contains(r#"<a href="/console/dead" aria-current="page">"#), "{text}");
        assert!(!write(&page, None).contains("<nav"));
    }

    fn reader(has_now: bool) -> Reader {
        Reader { name: None, has_session: false, has_now, csrf: String::new() }
    }

    #[test]
    fn a_port_without_the_state_of_the_cluster_does_not_lead_to_pages_made_of_it() {
        let page = Refused::new(503, "a", "b").page(Section::Dead);
        for has_now in [true, false] {
            let text = write(&page, Some(&reader(has_now)));
            assert_eq!(text.contains(">Now</a>"), has_now, "{text}");
            assert_eq!(text.contains(">Outboxes and intake</a>"), has_now, "{text}");
            assert!(text.contains(">Topics</a>"), "{text}");
        }
    }

    #[test]
    fn only_a_topic_that_is_certainly_unknown_is_called_so() {
        for (answer, is_told) in [
            (serde_json::json!({"topic_known": false}), true),
            (serde_json::json!({"topic_known": true}), false),
            (serde_json::json!({"topic_known": null}), false),
            (serde_json::json!({}), false),
        ] {
            let text = unknown_topic(&answer).into_string();
            assert_eq!(text.contains("may be misspelt"), is_told, "{answer}: {text}");
        }
    }
}
