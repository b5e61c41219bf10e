//! Columns of text.

/// Rows of words. Each column is as wide as its widest word; the first is left-aligned, the others
/// right-aligned.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// Whether the last column is left-aligned, because it holds words instead of numbers.
    pub(super) ends_in_words: bool,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn row<W: Into<String>>(&mut self, words: impl IntoIterator<Item = W>) {
        self.rows.push(words.into_iter().map(Into::into).collect());
    }

    /// All rows, one line each.
    pub(super) fn text(&self) -> String {
        let n_columns = self.rows.iter().map(Vec::len).max().unwrap_or_default();
        let width = |column: usize| {
            let words = self.rows.iter().filter_map(|row| row.get(column));
            let widths = words.map(|word: &String| word.chars().count());
            widths.max().unwrap_or_default()
        };
        let widths: Vec<usize> = (0..n_columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (i, (word, &width)) in row.iter().zip(&widths).enumerate() {
                line += &match i {
                    0 => format!("{word:<width$}"),
                    _ if self.ends_in_words && i + 1 == n_columns => format!("  {word}"),
                    _ => format!("  {word:>width$}"),
                };
            }
            text += line.trim_end();
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_words() {
        let mut table = Table::default();
        table.row(["a", "bcd"]);
        table.row(["long", "é", "x"]);
        assert_eq!(table.text(), "a     bcd\nlong    é  x\n");
        table.ends_in_words = true;
        table.row(["b", "c", "words"]);
        assert_eq!(table.text(), "a     bcd\nlong    é  x\nb       c  words\n");
    }
}
