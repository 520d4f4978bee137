//! Inputs: the data that real programs work on, made from a seed.
//!
//! Guarantees: the same amount gives the same bytes on every machine.
//! Never: does I/O but into the writer it is given.

use std::io::{Result, Write};

use deepheap_load::random::Random;

const SEED: u64 = 19;
/// Words of the language of `lines`.
const WORDS: u64 = 40_000;

/// Lines that are not sorted, of 40 to 80 bytes.
pub fn lines(count: u64, out: &mut dyn Write) -> Result<()> {
    let mut random = Random::new(SEED, 1);
    for number in 0..count {
        let key = random.next();
        write!(out, "{key:016x} line {number} of {}", random.below(1000))?;
        for _ in 0..random.below(6) {
            write!(out, " {}", word(random.below(WORDS)))?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// A word, the same for the same number.
fn word(number: u64) -> String {
    const SYLLABLES: [&str; 16] = [
        "ba", "de", "fi", "go", "hu", "ka", "le", "mi", "no", "pu", "ra", "se", "ti", "vo", "xy",
        "zan",
    ];
    let mut word = String::new();
    let mut rest = number + 16;
    while rest > 0 {
        word.push_str(SYLLABLES[(rest % 16) as usize]);
        rest /= 16;
    }
    word
}

/// C: functions with loops, switches and calls of one another.
pub fn c_source(functions: u64, out: &mut dyn Write) -> Result<()> {
    let mut random = Random::new(SEED, 3);
    writeln!(out, "/* Written by a program. */\nextern int table[1024];")?;
    for number in 0..functions {
        writeln!(out, "int f{number}(int a, int b)\n{{\n\tint s = {};", random.below(1000))?;
        for _ in 0..4 + random.below(4) {
            let (x, y) = (random.below(1000), random.below(1000));
            match random.below(4) {
                0 => writeln!(out, "\tfor (int i = 0; i < a; i++)\n\t\ts += table[i & {x}] ^ b;")?,
                1 => writeln!(out, "\tif (s > {x})\n\t\ts -= a * {y};\n\telse\n\t\tb += s;")?,
                2 => writeln!(
                    out,
                    "\tswitch (s & 3) {{\n\tcase 0: s += {x}; break;\n\tcase 1: s ^= b; break;\n\t\
                     default: a -= {y};\n\t}}"
                )?,
                _ if number == 0 => writeln!(out, "\ts += table[b & {x}];")?,
                _ => writeln!(out, "\ts += f{}(s, a + {x});", random.below(number))?,
            }
        }
        writeln!(out, "\treturn s + b;\n}}")?;
    }
    Ok(())
}

/// A picture (PPM) of so many pixels a side: smooth colours with some noise.
pub fn picture(side: u64, out: &mut dyn Write) -> Result<()> {
    let mut random = Random::new(SEED, 4);
    write!(out, "P6\n{side} {side}\n255\n")?;
    let mut row = Vec::with_capacity(side as usize * 3);
    for y in 0..side {
        row.clear();
        for x in 0..side {
            let noise = random.next();
            let smooth = [x * 200 / side, y * 200 / side, (x ^ y) * 200 / (2 * side)];
            let noisy = |at: usize| (smooth[at] + ((noise >> (8 * at)) & 31)).min(255) as u8;
            row.extend([noisy(0), noisy(1), noisy(2)]);
        }
        out.write_all(&row)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_the_same_each_time_and_grow_with_their_amount() {
        for make in [lines, c_source, picture] {
            let made = |amount| {
                let mut bytes = Vec::new();
                make(amount, &mut bytes).unwrap();
                bytes
            };
            assert_eq!(made(100), made(100));
            assert!(made(100).len() < made(500).len());
        }
    }
}
