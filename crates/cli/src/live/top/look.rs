//! Look: how `top` is drawn. Colours, what pictures are made of, numbers as a row of little bars,
//! parts of a whole as one bar, and what a narrow screen leaves out.
//!
//! Guarantees: without colours there is none; what is bold or reversed stays so. A picture has as
//! many characters as columns were asked for.
//! Threads: pure functions.

use ratatui::style::{Color, Modifier, Style};

/// How it is drawn.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Whether there are colours.
    pub has_colour: bool,
    /// The glyphs of pictures.
    pub glyphs: Glyphs,
}

impl Look {
    /// A colour, where there are colours.
    pub fn colour(self, colour: Color) -> Style {
        if self.has_colour { Style::new().fg(colour) } else { Style::new() }
    }

    /// Titles.
    pub fn bold(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// Text that matters less.
    pub fn dim(self) -> Style {
        if self.has_colour { Style::new().add_modifier(Modifier::DIM) } else { Style::new() }
    }
}

/// The characters that pictures are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Glyphs {
    /// Blocks, for terminals that show UTF-8.
    Blocks,
    /// ASCII.
    Plain,
}

impl Glyphs {
    /// The glyphs that the locale of the environment can show.
    pub fn of_environment() -> Glyphs {
        let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let locale = set("LC_ALL").or_else(|| set("LC_CTYPE")).or_else(|| set("LANG"));
        let locale = locale.unwrap_or_default().to_lowercase();
        match locale.contains("utf-8") || locale.contains("utf8") {
            true => Glyphs::Blocks,
            false => Glyphs::Plain,
        }
    }

    /// Heights of a little bar, from nothing up.
    fn heights(self) -> [char; 9] {
        match self {
            Glyphs::Blocks => [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'],
            Glyphs::Plain => [' ', '.', '.', ':', ':', '-', '=', '+', '#'],
        }
    }

    /// The glyphs that fill the bar of RAM: in RAM, compressed, tables, free.
    pub fn fills(self) -> [char; 4] {
        match self {
            Glyphs::Blocks => ['█', '▓', '▒', '░'],
            Glyphs::Plain => ['#', '=', 't', '.'],
        }
    }
}

/// The last `columns` numbers, the newest on the right, the largest of them as high as it goes.
/// A number that is not zero is seen.
pub fn sparkline(
    numbers: impl DoubleEndedIterator<Item = f64>,
    columns: usize,
    glyphs: Glyphs,
) -> String {
    let mut shown: Vec<f64> = numbers.rev().take(columns).collect();
    shown.reverse();
    let largest = shown.iter().copied().fold(0.0, f64::max);
    let heights = glyphs.heights();
    let bars = shown.iter().map(|number| match number {
        number if *number > 0.0 => heights[((number / largest * 8.0).round() as usize).clamp(1, 8)],
        _ => heights[0],
    });
    core::iter::repeat_n(' ', columns - shown.len()).chain(bars).collect()
}

/// How many of `columns` each part of a whole gets; the last part is what is left. A part that is
/// not zero and would round to nothing gets a column if there is one.
pub fn columns_of<const N: usize>(parts: [u64; N], whole: u64, columns: usize) -> [usize; N] {
    let mut left = columns;
    let mut given = [0; N];
    for (given, part) in given.iter_mut().zip(parts).take(N - 1) {
        let share = if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
        let wanted = (share * columns as f64).round() as usize;
        *given = wanted.max(usize::from(part > 0)).min(left);
        left -= *given;
    }
    given[N - 1] = left;
    given
}

/// The parts that fit into `columns` together. The one of the highest rank goes first.
pub fn fitting<T>(
    mut parts: Vec<T>,
    columns: usize,
    width: impl Fn(&T) -> usize,
    rank: impl Fn(&T) -> u8,
) -> Vec<T> {
    while parts.iter().map(&width).sum::<usize>() > columns {
        let least = (0..parts.len()).max_by_key(|&at| rank(&parts[at]));
        let Some(least) = least.filter(|_| parts.len() > 1) else { break };
        parts.remove(least);
    }
    parts
}

/// As many clauses of a sentence as fit into `columns`: those before a comma or a semicolon.
pub fn clauses(text: &str, columns: usize) -> &str {
    let ends = text.match_indices([',', ';']).map(|(at, _)| at).chain([text.len()]);
    let fits = ends.rev().find(|&end| text[..end].chars().count() <= columns);
    fits.map_or("", |end| &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparkline_is_as_wide_as_asked_for_and_the_newest_are_on_the_right() {
        let line =
            |numbers: &[f64], columns| sparkline(numbers.iter().copied(), columns, Glyphs::Blocks);
        assert_eq!(line(&[], 3), "   ");
        assert_eq!(line(&[0.0, 0.0], 3), "   ");
        assert_eq!(line(&[1.0, 800.0, 0.0, 400.0], 6), "  ▁█ ▄");
        assert_eq!(line(&[9.0, 1.0, 2.0], 2), "▄█");
        assert_eq!(sparkline([1.0, 8.0].into_iter(), 2, Glyphs::Plain), ".#");
    }

    #[test]
    fn what_does_not_fit_goes_as_a_whole() {
        let kept = |columns| {
            let parts = vec![("one", 0), ("three", 2), ("two", 1)];
            let kept = fitting(parts, columns, |part| part.0.len(), |part| part.1);
            kept.into_iter().map(|part| part.0).collect::<Vec<_>>()
        };
        assert_eq!(kept(11), ["one", "three", "two"]);
        assert_eq!(kept(10), ["one", "two"]);
        assert_eq!(kept(0), ["one"], "one stays");
        let text = "12 MiB read, 7 written; ratio 1.05";
        let lengths = [11, 21, 22, 33, 34].map(|columns| clauses(text, columns).len());
        assert_eq!(lengths, [11, 11, 22, 22, 34]);
        assert_eq!(clauses(text, 10), "");
    }

    #[test]
    fn parts_fill_a_bar_and_none_that_is_there_vanishes() {
        assert_eq!(columns_of([50, 25, 0, 25], 100, 40), [20, 10, 0, 10]);
        assert_eq!(columns_of([1, 0, 1, 998], 1000, 10), [1, 0, 1, 8]);
        assert_eq!(columns_of([700, 400, 100, 0], 1000, 10), [7, 3, 0, 0], "over the budget");
        assert_eq!(columns_of([0, 0, 0, 0], 0, 5), [0, 0, 0, 5]);
    }
}
