//! `--strict`: makes a run reproducible, and prints how to repeat it with llama.cpp.

use super::plan::Test;
use super::row::Row;

/// The lines after a strict run's results: a hash of the generated tokens, and llama-bench's
/// command.
pub(super) fn report(row: &Row, repetitions: u32) -> String {
    let name = row.test.name();
    let hash = row.samples.tokens_hash.unwrap_or_default();
    let tokens = if row.test.n_gen > 0 {
        format!("strict {name}: tokens {hash:016x} ({}), ", row.isa)
    } else {
        format!("strict {name}: ")
    };
    match llama_bench(&row.test, &row.model.filename, repetitions) {
        Some(command) => format!("{tokens}llama.cpp: {command}"),
        None => format!("{tokens}llama-bench cannot run this test"),
    }
}

/// The llama-bench command that measures the same; `None` if it cannot.
fn llama_bench(test: &Test, file: &str, repetitions: u32) -> Option<String> {
    let Test {
        setting,
        n_prompt,
        n_gen,
        n_depth,
        n_parallel,
        n_positions,
    } = *test;
    if n_parallel > 1 || n_positions > 1 {
        return None;
    }
    let n_threads = setting.n_threads;
    let what = match (n_prompt, n_gen) {
        (pp, 0) => format!("-p {pp} -n 0"),
        (0, tg) => format!("-p 0 -n {tg}"),
        (pp, tg) => format!("-p 0 -n 0 -pg {pp},{tg}"),
    };
    let mut command = format!("llama-bench -m {} {what}", quoted(file));
    if n_depth > 0 {
        command += &format!(" -d {n_depth}");
    }
    // Threads on their own cores and fused attention, as here.
    let mask = 1u128
        .checked_shl(n_threads)
        .map_or(u128::MAX, |bit| bit - 1);
    command += &format!(
        " -t {n_threads} -C {mask:#x} --cpu-strict 1 -fa 1 -b {} -ub {} -ctk {} -ctv {} -r {repetitions}",
        setting.n_batch, setting.n_ubatch, setting.kv.0, setting.kv.1,
    );
    Some(command)
}

/// `text` quoted as one shell word.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_llama_benchs() {
        let test = Test {
            n_prompt: 0,
            n_gen: 64,
            n_depth: 512,
            ..Row::example().test
        };
        assert_eq!(
            llama_bench(&test, "a b.gguf", 3).unwrap(),
            "llama-bench -m 'a b.gguf' -p 0 -n 64 -d 512 -t 1 -C 0x1 --cpu-strict 1 -fa 1 \
             -b 2048 -ub 512 -ctk f16 -ctv f16 -r 3"
        );
        let several = Test {
            n_positions: 4,
            ..test
        };
        assert_eq!(llama_bench(&several, "a", 3), None);
        assert_eq!(quoted("it's"), "'it'\\''s'");
    }
}
