//! Table: the markdown of one case of `threads`, a line for each number of threads.
//!
//! Guarantees: the numbers are medians of the rounds, a ratio the median of the rounds' ratios; the
//! longest touch is that of all rounds.
//! Never: measures.

use super::program::{Measured, On};

/// What one line is of: the contenders' numbers, round by round.
#[derive(Clone, Debug)]
pub struct Row {
    pub threads: u32,
    pub write_percent: u32,
    pub rounds: Vec<Vec<Measured>>,
}

impl Row {
    fn median(&self, contender: usize, of: fn(&Measured) -> f64) -> f64 {
        median(self.rounds.iter().map(|round| of(&round[contender])).collect())
    }
}

/// The table of a case.
pub fn markdown(contenders: &[On], rows: &[Row]) -> String {
    let names: Vec<&str> = contenders.iter().map(|on| on.name()).collect();
    let versus = if names.len() > 1 { format!(" {} |", names.join(" : ")) } else { String::new() };
    let rates: String = names.iter().map(|name| format!(" {name}, touches/s |")).collect();
    let mut text = format!(
        "| touches | threads |{rates}{versus} against {} thread(s) | CPU us a touch | p50 us | \
         p99 us | longest ms | faults a touch | reads of the device a touch |\n",
        rows.first().map_or(1, |row| row.threads),
    );
    let columns = text.matches('|').count() - 1;
    text.push_str(&format!("|{}\n", "---|".repeat(columns)));
    for row in rows {
        let first = rows.iter().find(|first| first.write_percent == row.write_percent);
        // A number of each contender.
        let cell = |digits: usize, number: &dyn Fn(usize) -> f64| {
            let all = (0..names.len()).map(|contender| format!("{:.digits$}", number(contender)));
            format!(" {} |", all.collect::<Vec<_>>().join(" : "))
        };
        let rate = |row: &Row, contender| row.median(contender, |one| one.touches_per_s);
        text.push_str(&match row.write_percent {
            0 => format!("| reads | {} |", row.threads),
            percent => format!("| {percent} % writes | {} |", row.threads),
        });
        for contender in 0..names.len() {
            text.push_str(&format!(" {:.0} |", rate(row, contender)));
        }
        if names.len() > 1 {
            let ratio = |round: &Vec<Measured>| round[0].touches_per_s / round[1].touches_per_s;
            let ratio = median(row.rounds.iter().map(ratio).collect());
            text.push_str(&format!(" {ratio:.2}x |"));
        }
        let against = |c| first.map_or(1.0, |first| rate(row, c) / rate(first, c));
        text.push_str(&cell(2, &against));
        text.push_str(&cell(2, &|c| row.median(c, |one| one.cpu_us_per_touch)));
        text.push_str(&cell(1, &|c| row.median(c, |one| one.p50_us)));
        text.push_str(&cell(1, &|c| row.median(c, |one| one.p99_us)));
        let longest = |c: usize| row.rounds.iter().map(move |round| round[c].longest_us / 1e3);
        text.push_str(&cell(1, &|c| longest(c).fold(0.0, f64::max)));
        text.push_str(&cell(2, &|c| row.median(c, |one| one.faults_per_touch)));
        text.push_str(&cell(4, &|c| row.median(c, |one| one.device_faults_per_touch)));
        text.push('\n');
    }
    for (contender, name) in names.iter().enumerate() {
        let rounds = rows.iter().flat_map(|row| &row.rounds);
        let most = rounds.map(|round| round[contender].ram_bytes).max().unwrap_or(0);
        text.push_str(&format!("\n{name} took at most {} MiB of RAM.", most >> 20));
    }
    text
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        count if count % 2 == 1 => values[count / 2],
        count => (values[count / 2 - 1] + values[count / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_medians_ratios_of_rounds_and_the_longest_of_all() {
        let measured = |touches_per_s, longest_us| Measured {
            touches_per_s,
            longest_us,
            cpu_us_per_touch: 2.5,
            p50_us: 1.0,
            p99_us: 9.0,
            ram_bytes: 7 << 20,
            ..Measured::default()
        };
        let round = |ours, theirs| vec![measured(ours, 1e3), measured(theirs, 4e3)];
        let row = |threads, rounds| Row { threads, write_percent: 0, rounds };
        let one = row(1, vec![round(100.0, 50.0)]);
        let two = row(2, vec![round(200.0, 50.0), round(90.0, 90.0), round(240.0, 120.0)]);
        let text = markdown(&[On::Deepheap, On::Zram], &[one, two]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0].matches('|').count(), lines[1].matches('|').count());
        assert_eq!(lines[0].matches('|').count(), lines[3].matches('|').count());
        assert_eq!(
            lines[3],
            "| reads | 2 | 200 | 90 | 2.00x | 2.00 : 1.80 | 2.50 : 2.50 | 1.0 : 1.0 | 9.0 : 9.0 | \
             1.0 : 4.0 | 0.00 : 0.00 | 0.0000 : 0.0000 |"
        );
        assert!(text.ends_with("zram took at most 7 MiB of RAM."));
    }

    #[test]
    fn a_contender_without_a_rival_has_no_ratio() {
        let one = Measured { touches_per_s: 10.0, ..Measured::default() };
        let rows = [Row { threads: 1, write_percent: 50, rounds: vec![vec![one]] }];
        let text = markdown(&[On::Deepheap], &rows);
        assert!(text.contains("| 50 % writes | 1 | 10 | 1.00 | 0.00 |"), "{text}");
    }
}
