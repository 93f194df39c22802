//! Reads librdkafka properties from flags, a variable and a file. The `kafka` module decides which
//! properties may be set.

use std::fmt;

use super::args;
use super::host::Host;
use super::reader::SettingsReader;
use super::secret::Secret;

pub(super) const FLAG: &str = "--kafka-property";
const FILE_FLAG: &str = "--kafka-properties-file";
const VARIABLE: &str = "--kafka-property (PUNCTUAL_KAFKA_PROPERTIES)";

/// A librdkafka property.
#[derive(Clone, PartialEq, Eq)]
pub struct Property {
    pub name: String,
    pub value: Secret,
    /// True when the property was one of several in the variable. When a password contains a comma,
    /// the "name" may be the rest of the password. So such a name is printed only if librdkafka
    /// knows it.
    pub is_from_list: bool,
}

impl Property {
    /// Returns names and values, as Kafka's clients take them.
    pub fn pairs<'a>(properties: impl IntoIterator<Item = &'a Self>) -> Vec<(String, String)> {
        properties
            .into_iter()
            .map(|property| (property.name.clone(), property.value.expose().to_owned()))
            .collect()
    }
}

impl fmt::Debug for Property {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_from_list { "(secret)" } else { &self.name })
    }
}

/// Properties as written.
#[derive(Debug)]
struct Sources<'a> {
    /// One `k=v` each.
    flags: &'a [Secret],
    /// A list, `k=v,k=v`.
    variable: Option<&'a Secret>,
    /// One `k=v` per line. Empty lines and lines that start with `#` are ignored.
    file: Option<&'a Secret>,
}

/// Reads the properties from all sources.
pub(super) fn read(
    args: &args::KafkaProperties,
    host: &Host<'_>,
    reader: &mut SettingsReader,
) -> Vec<Property> {
    let file = args.file.as_deref().and_then(|path| host.read_secret(FILE_FLAG, path, reader));
    let variable = args.list.as_ref().filter(|list| !list.expose().trim().is_empty());
    read_sources(&Sources { flags: &args.flags, variable, file: file.as_ref() }, reader)
}

/// Reads the properties of `sources`. A key given twice is a problem, wherever it stands, because
/// the program cannot choose.
fn read_sources(sources: &Sources<'_>, reader: &mut SettingsReader) -> Vec<Property> {
    let flags = sources.flags.iter().map(|pair| (FLAG, None, pair.expose()));
    let variable = sources
        .variable
        .iter()
        .flat_map(|list| list.expose().split(','))
        .map(|pair| (VARIABLE, None, pair));
    let lines = sources.file.iter().flat_map(|file| (1_usize..).zip(file.expose().lines()));
    let lines = lines
        .filter(|(_, line)| !is_silent(line))
        .map(|(number, line)| (FILE_FLAG, Some(number), line));
    let mut properties: Vec<Property> = Vec::new();
    for (flag, line, pair) in flags.chain(variable).chain(lines) {
        let subject =
            line.map_or_else(|| "a property".to_owned(), |number| format!("line {number}"));
        // The text is not repeated in the problem: it may be a password without its key.
        let Some((key, value)) = pair.split_once('=') else {
            reader.problem(
                flag,
                format!(
                    "{subject} is not of the form key=value (a value with commas must be in a flag \
                     or the file)"
                ),
            );
            continue;
        };
        let key = key.trim();
        let is_from_list = flag == VARIABLE;
        if key.is_empty() {
            reader.problem(flag, format!("{subject} has an empty key"));
            continue;
        }
        match properties.iter().find(|known| known.name == key) {
            Some(known) if known.is_from_list && is_from_list => {
                reader.problem(
                    flag,
                    "a property is given twice (a value with commas must be in a flag or the file)",
                );
            }
            Some(_) => reader.problem(flag, format!("{subject}: `{key}` is given twice")),
            None => properties.push(Property {
                name: key.to_owned(),
                value: Secret::from(value.trim()),
                is_from_list,
            }),
        }
    }
    properties
}

fn is_silent(line: &str) -> bool {
    let line = line.trim();
    line.is_empty() || line.starts_with('#')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(
        flags: &[&str],
        variable: Option<&str>,
        file: Option<&str>,
    ) -> (Vec<(String, String)>, Vec<String>) {
        let flags: Vec<Secret> = flags.iter().copied().map(Secret::from).collect();
        let (variable, file) = (variable.map(Secret::from), file.map(Secret::from));
        let mut reader = SettingsReader::default();
        let sources = Sources { flags: &flags, variable: variable.as_ref(), file: file.as_ref() };
        let properties = read_sources(&sources, &mut reader);
        let problems = reader.finish(()).err().unwrap_or_default();
        (
            properties
                .into_iter()
                .map(|property| (property.name, property.value.expose().to_owned()))
                .collect(),
            problems.iter().map(ToString::to_string).collect(),
        )
    }

    #[test]
    fn properties_come_from_flags_the_variable_and_the_file() {
        let (properties, problems) =
            read_all(&["a=1,2"], Some("b=2,c = 3"), Some("# secret\n\nd=x=y\n"));
        let expected = [("a", "1,2"), ("b", "2"), ("c", "3"), ("d", "x=y")]
            .map(|(k, v)| (k.to_owned(), v.to_owned()));
        assert_eq!(properties, expected);
        assert_eq!(problems, Vec::<String>::new());
    }

    #[test]
    fn a_key_that_is_given_twice_is_a_problem() {
        let (_, problems) = read_all(&["a=1", "=0"], Some("a=2"), None);
        assert_eq!(problems.len(), 2);
        assert!(
            problems[0].contains("empty key") && problems[1].contains("`a` is given twice"),
            "{problems:?}"
        );
    }

    #[test]
    fn the_rest_of_a_password_with_a_comma_is_not_printed() {
        let (properties, problems) =
            read_all(&[], Some("sasl.password=a,hunter2=c,hunter2=d"), None);
        assert_eq!((properties.len(), problems.len()), (2, 1));
        assert!(!problems[0].contains("hunter2") && problems[0].contains("commas"), "{problems:?}");
        let property =
            Property { name: "hunter2".to_owned(), value: Secret::from("c"), is_from_list: true };
        assert_eq!(format!("{property:?}"), "(secret)");
    }

    #[test]
    fn a_pair_without_an_equals_sign_is_a_problem_that_does_not_repeat_it() {
        let (_, problems) = read_all(&["hunter2"], None, Some("# secret\na=1\nhunter2\n=2\na=3"));
        let starts = [
            "--kafka-property: a property is not",
            "--kafka-properties-file: line 3 is not",
            "--kafka-properties-file: line 4 has an empty key",
            "--kafka-properties-file: line 5: `a` is given twice",
        ];
        assert_eq!(problems.len(), 4, "{problems:?}");
        for (problem, start) in problems.iter().zip(starts) {
            assert!(problem.starts_with(start) && !problem.contains("hunter2"), "{problem}");
        }
    }
}
