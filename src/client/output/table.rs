//! Aligns rows in columns.

use crate::client::task::is_steering;

/// A table that is printed page by page. A column grows to fit its cells and never shrinks.
#[derive(Debug)]
pub struct Table<const N: usize> {
    widths: [usize; N],
    /// The heads of the columns, until they were printed.
    heads: Option<[&'static str; N]>,
}

impl<const N: usize> Table<N> {
    pub fn new(heads: [&'static str; N]) -> Self {
        Self { widths: heads.map(str::len), heads: Some(heads) }
    }

    /// Returns the next rows as text, with the heads before the first row.
    pub fn rows(&mut self, rows: &[[String; N]]) -> String {
        for row in rows {
            for (width, cell) in self.widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let mut text = String::new();
        if !rows.is_empty()
            && let Some(heads) = self.heads.take()
        {
            self.row(&mut text, &heads.map(str::to_owned));
        }
        rows.iter().for_each(|row| self.row(&mut text, row));
        text
    }

    fn row(&self, text: &mut String, row: &[String; N]) {
        let start = text.len();
        for (width, cell) in self.widths.iter().zip(row) {
            // Cells hold users' data, which could break the lines, or control the terminal.
            let cell: String =
                cell.chars().map(|c| if is_steering(c) { '\u{fffd}' } else { c }).collect();
            text.push_str(&cell);
            text.extend(std::iter::repeat_n(' ', width.saturating_sub(cell.chars().count()) + 2));
        }
        text.truncate(start + text[start..].trim_end().len());
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_under_their_heads() {
        let mut table = Table::new(["a", "long", "c"]);
        assert_eq!(table.rows(&[]), "");
        let row = |cells: [&str; 3]| cells.map(str::to_owned);
        assert_eq!(
            table.rows(&[row(["1", "2", "3"]), row(["12345", "ä\n", ""])]),
            "a      long  c\n1      2     3\n12345  ä\u{fffd}\n"
        );
        assert_eq!(table.rows(&[row(["1", "2", "3"])]), "1      2     3\n");
        let steering = row(["\u{1b}\u{9b}", "\u{202e}\u{2028}", "\u{200f}"]);
        let shown = "\u{fffd}\u{fffd}     \u{fffd}\u{fffd}    \u{fffd}\n";
        assert_eq!(table.rows(&[steering]), shown);
    }
}
