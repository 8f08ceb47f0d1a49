//! Tables for people: columns that line up, and fit the width there is.

use std::io::{self, Write};

use super::terminal::{Layout, Style};
use super::text::one_line;

/// Two columns are this far apart.
const GAP: usize = 2;

/// Rows that are looked at for the widths of the columns; later ones are printed as they come, so that a table of any
/// length needs little memory.
const MEASURED_ROWS: usize = 1_000;

/// One column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Column {
    title: String,
    right: bool,
    narrowest: Option<usize>,
    rank: u8,
}

impl Column {
    /// A column of texts that are never cut.
    pub(crate) fn new(title: impl Into<String>) -> Column {
        Column { title: title.into(), right: false, narrowest: None, rank: 0 }
    }

    /// Aligned to the right, as numbers are.
    pub(crate) fn right(self) -> Column {
        Column { right: true, ..self }
    }

    /// May be cut to this many columns where space is short.
    pub(crate) fn narrowest(self, columns: usize) -> Column {
        Column { narrowest: Some(columns), ..self }
    }

    /// May be left out where space is short; the highest rank goes first. Rank 0 always stays.
    pub(crate) fn rank(self, rank: u8) -> Column {
        Column { rank, ..self }
    }
}

/// One cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    text: String,
    style: Option<Style>,
}

impl<T: AsRef<str>> From<T> for Cell {
    fn from(text: T) -> Cell {
        Cell { text: one_line(text.as_ref()), style: None }
    }
}

impl Cell {
    /// In this style, where colours may be used.
    pub(crate) fn styled(self, style: Style) -> Cell {
        Cell { style: Some(style), ..self }
    }
}

/// A table that is written while it is filled.
pub(crate) struct Table<'o> {
    out: &'o mut dyn Write,
    layout: Layout,
    columns: Vec<Column>,
    header: bool,
    /// Rows that wait for the widths.
    waiting: Vec<Vec<Cell>>,
    /// Width of each column, `None` for one that is left out; known once the first rows were looked at.
    widths: Option<Vec<Option<usize>>>,
}

impl<'o> Table<'o> {
    /// An empty table; without rows only its header is written.
    pub(crate) fn new(out: &'o mut dyn Write, layout: Layout, columns: Vec<Column>, header: bool) -> Table<'o> {
        Table { out, layout, columns, header, waiting: Vec::new(), widths: None }
    }

    /// Adds a row, with one cell for each column.
    ///
    /// # Errors
    /// Those of the output.
    pub(crate) fn row(&mut self, cells: Vec<Cell>) -> io::Result<()> {
        assert_eq!(cells.len(), self.columns.len(), "a row has one cell for each column");
        if self.widths.is_some() {
            return self.line(&cells);
        }
        self.waiting.push(cells);
        if self.waiting.len() == MEASURED_ROWS { self.release() } else { Ok(()) }
    }

    /// Writes what is left. Gives the titles of the columns that found no space.
    ///
    /// # Errors
    /// Those of the output.
    pub(crate) fn finish(mut self) -> io::Result<Vec<String>> {
        self.release()?;
        let widths = self.widths.unwrap_or_default();
        let left_out = self.columns.into_iter().zip(widths).filter(|(_, width)| width.is_none());
        Ok(left_out.map(|(column, _)| column.title).collect())
    }

    /// Decides the widths and writes the rows that waited for them.
    fn release(&mut self) -> io::Result<()> {
        if self.widths.is_none() {
            let mut widths: Vec<usize> =
                self.columns.iter().map(|column| if self.header { display_width(&column.title) } else { 0 }).collect();
            for row in &self.waiting {
                for (width, cell) in widths.iter_mut().zip(row) {
                    *width = (*width).max(display_width(&cell.text));
                }
            }
            self.widths = Some(fit(&self.columns, widths, self.layout.width));
            if self.header {
                let titles = self.columns.iter().map(|column| Cell::from(&column.title).styled(Style::Bold));
                self.line(&titles.collect::<Vec<Cell>>())?;
            }
        }
        for row in std::mem::take(&mut self.waiting) {
            self.line(&row)?;
        }
        Ok(())
    }

    fn line(&mut self, cells: &[Cell]) -> io::Result<()> {
        let widths = self.widths.as_deref().expect("they are decided before the first line");
        let mut line = String::new();
        let mut used = 0;
        // Blanks are put down only when something follows them.
        let mut blanks = 0;
        for ((cell, column), width) in cells.iter().zip(&self.columns).zip(widths) {
            let Some(width) = *width else { continue };
            let (width, most) = match self.layout.width {
                Some(all) => {
                    let width = width.min(all.saturating_sub(used + blanks));
                    (width, width)
                }
                None => (width, usize::MAX),
            };
            let text = cut(&cell.text, most);
            let missing = width.saturating_sub(display_width(&text));
            let (before, after) = if column.right { (missing, 0) } else { (0, missing) };
            if !text.is_empty() {
                blanks += before;
                line.extend(std::iter::repeat_n(' ', blanks));
                used += blanks + display_width(&text);
                blanks = after + GAP;
                line.push_str(&cell.style.map_or(text.clone(), |style| self.layout.styled(style, &text)));
            } else {
                blanks += missing + GAP;
            }
        }
        line.push('\n');
        self.out.write_all(line.as_bytes())
    }
}

/// The widths of the columns within `all`: first columns with a rank are left out from the highest, then those that can
/// be are cut, the widest first. What still does not fit is cut at the end of the line.
fn fit(columns: &[Column], widths: Vec<usize>, all: Option<usize>) -> Vec<Option<usize>> {
    let mut widths: Vec<Option<usize>> = widths.into_iter().map(Some).collect();
    let Some(all) = all else { return widths };
    let total = |widths: &[Option<usize>]| {
        let present = widths.iter().flatten().count();
        widths.iter().flatten().sum::<usize>() + GAP * present.saturating_sub(1)
    };
    let narrow = |column: &Column, width: usize| width.min(column.narrowest.unwrap_or(width));
    loop {
        let least: Vec<Option<usize>> =
            columns.iter().zip(&widths).map(|(column, width)| width.map(|width| narrow(column, width))).collect();
        if total(&least) <= all {
            break;
        }
        let last = columns.iter().enumerate().filter(|(at, column)| column.rank > 0 && widths[*at].is_some());
        let Some((at, _)) = last.max_by_key(|(at, column)| (column.rank, *at)) else { break };
        widths[at] = None;
    }
    while total(&widths) > all {
        let cuttable = columns.iter().zip(&widths).enumerate().filter_map(|(at, (column, width))| {
            width.filter(|width| *width > narrow(column, *width)).map(|width| (width, at))
        });
        let Some((width, at)) = cuttable.max() else { break };
        widths[at] = Some(width - 1);
    }
    widths
}

/// `text` within `most` columns, with `…` for what was cut off.
fn cut(text: &str, most: usize) -> String {
    if display_width(text) <= most {
        return text.to_owned();
    }
    let Some(most) = most.checked_sub(1) else { return String::new() };
    let mut kept = String::new();
    let mut used = 0;
    for c in text.chars() {
        used += char_width(c);
        if used > most {
            break;
        }
        kept.push(c);
    }
    kept.push('…');
    kept
}

/// The columns that a text takes on a terminal.
fn display_width(text: &str) -> usize {
    if text.is_ascii() { text.len() } else { text.chars().map(char_width).sum() }
}

/// As terminals do it: nothing for marks that sit on the character before, two for East Asian wide ones and emoji.
fn char_width(c: char) -> usize {
    match u32::from(c) {
        0x0300..=0x036F | 0x200B..=0x200F | 0x20D0..=0x20FF | 0xFE00..=0xFE0F | 0xFE20..=0xFE2F => 0,
        0x1100..=0x115F | 0x2E80..=0x303E | 0x3041..=0xA4CF | 0xA960..=0xA97F | 0xAC00..=0xD7A3 => 2,
        0xF900..=0xFAFF | 0xFE30..=0xFE6F | 0xFF00..=0xFF60 | 0xFFE0..=0xFFE6 => 2,
        0x1F300..=0x1F64F | 0x1F680..=0x1F6FF | 0x1F900..=0x1F9FF | 0x20000..=0x3FFFD => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns() -> Vec<Column> {
        vec![
            Column::new("TOOL").narrowest(6),
            Column::new("CALLS").right(),
            Column::new("NOTE").rank(1),
            Column::new("LAST"),
        ]
    }

    fn render(width: Option<usize>, header: bool, rows: &[[&str; 4]]) -> (String, Vec<String>) {
        let mut out = Vec::new();
        let layout = Layout { width, colour: false };
        let mut table = Table::new(&mut out, layout, columns(), header);
        for row in rows {
            table.row(row.iter().map(Cell::from).collect()).expect("memory takes it");
        }
        let left_out = table.finish().expect("memory takes it");
        (String::from_utf8(out).expect("text"), left_out)
    }

    const ROWS: [[&str; 4]; 2] = [["read_a_long_file", "7", "fine", "x"], ["ls", "12345", "", "y"]];

    #[test]
    fn columns_line_up_and_lines_end_without_blanks() {
        assert_eq!(
            render(None, true, &ROWS).0,
            "TOOL              CALLS  NOTE  LAST\n\
             read_a_long_file      7  fine  x\n\
             ls                12345        y\n"
        );
        assert_eq!(render(None, false, &[["a", "1", "n", ""]]).0, "a  1  n\n");
        assert_eq!(render(None, true, &[]).0, "TOOL  CALLS  NOTE  LAST\n");
        assert_eq!(render(None, false, &[]).0, "");
    }

    #[test]
    fn what_does_not_fit_is_cut_or_left_out_and_no_line_is_too_long() {
        assert_eq!(
            render(Some(25), true, &ROWS).0,
            "TOOL    CALLS  NOTE  LAST\n\
             read_…      7  fine  x\n\
             ls      12345        y\n"
        );
        let (text, left_out) = render(Some(20), true, &ROWS);
        assert_eq!(text, "TOOL     CALLS  LAST\nread_a…      7  x\nls       12345  y\n");
        assert_eq!(left_out, ["NOTE"]);
        for width in 1..40 {
            let (text, _) = render(Some(width), true, &ROWS);
            assert!(text.lines().all(|line| display_width(line) <= width), "{width}:\n{text}");
            assert_eq!(text.lines().count(), 3, "{width}");
        }
    }

    #[test]
    fn wide_characters_and_marks_count_as_terminals_show_them() {
        assert_eq!(
            render(None, false, &[["日本", "1", "", "x"], ["e\u{301}t", "2", "", "x"], ["🎉", "3", "", "x"]]).0,
            "日本  1    x\ne\u{301}t    2    x\n🎉    3    x\n"
        );
        assert_eq!(cut("日本語", 5), "日本…");
        assert_eq!(cut("日本語", 4), "日…");
        assert_eq!(cut("abc", 0), "");
    }

    #[test]
    fn a_cell_stays_in_its_line_and_cannot_move_the_cursor() {
        assert_eq!(render(None, false, &[["a\n\u{1b}[2J", "1", "", "x"]]).0, "a\\n\\u{1b}[2J  1    x\n");
    }

    #[test]
    fn colours_do_not_count_as_width() {
        let mut out = Vec::new();
        let layout = Layout { width: Some(8), colour: true };
        let columns = vec![Column::new("A").narrowest(1), Column::new("B")];
        let mut table = Table::new(&mut out, layout, columns, false);
        table.row(vec![Cell::from("abcdefgh").styled(Style::Red), "x".into()]).expect("written");
        table.finish().expect("written");
        assert_eq!(String::from_utf8_lossy(&out), "\x1b[31mabcd…\x1b[0m  x\n");
    }

    #[test]
    fn rows_beyond_those_measured_are_written_as_they_come() {
        let mut out = Vec::new();
        let mut table = Table::new(&mut out, Layout::default(), vec![Column::new("A"), Column::new("B")], false);
        for n in 0..=MEASURED_ROWS {
            table.row(vec!["a".repeat(if n == MEASURED_ROWS { 5 } else { 1 }).into(), "b".into()]).expect("written");
            assert!(table.waiting.len() < MEASURED_ROWS);
        }
        table.finish().expect("written");
        assert!(String::from_utf8_lossy(&out).ends_with("a  b\naaaaa  b\n"));
    }
}
