//! The pages of the docs, whose code and output the tests check.

use std::path::Path;

/// Returns the block of a page that follows a mark such as `<!-- output: submit -->`.
pub fn block(page: &str, mark: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
    let text = std::fs::read_to_string(&path).unwrap();
    let found = text.split_once(&format!("<!-- {mark} -->\n```"));
    let (_, rest) = found.unwrap_or_else(|| panic!("{page} has no block marked {mark}"));
    let (_language, rest) = rest.split_once('\n').unwrap();
    rest.split_once("```").unwrap().0.to_owned()
}
