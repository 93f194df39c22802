//! Makes the inputs of a decoder: the corpus, and cut, spliced and altered variants. A seed makes a
//! run repeatable.
//!
//! `FUZZ_SECONDS=60` searches for longer, and `FUZZ_SEED=7` repeats a search. An input with a panic
//! is shrunk as far as possible and shown. Add the input to the corpus when the decoder is fixed,
//! so later runs include it.
//!
//! The harness does not use `bolero` or `cargo-fuzz`: their search by coverage needs a nightly
//! toolchain, and `make test` must not need one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};

/// The default number of inputs for each decoder, which takes seconds for all of them.
const INPUTS: u32 = 4_000;
const BYTES_MAX: usize = 4_096;

/// Inputs that often break numbers, texts and times.
const TOKENS: [&[u8]; 30] = [
    b"0",
    b"-0",
    b"-1",
    b"1e400",
    b"9223372036854775807",
    b"-9223372036854775808",
    b"18446744073709551616",
    b"281474976710655",
    b"281474976710656",
    b"253402300799999",
    b"9999-12-31T23:59:60Z",
    b"+10000-01-01T00:00:00Z",
    b"-000001-01-01T00:00:00Z",
    b"1969-12-31T23:59:59.999999999Z",
    b"PT9223372036854775807S",
    b"P1Y2M",
    b"999999999h",
    b"null",
    b"true",
    b"\"",
    b"\\u0000",
    b"\\ud800",
    b"\\",
    b"{",
    b"}",
    b"[[[[[[[[",
    b"\0",
    b"\xff\xfe",
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
];

/// Calls `decode` with all of the corpus of `target`, and then with many variants of it.
///
/// # Panics
/// Panics with the input when `decode` does. `decode` asserts the required properties of its
/// results.
pub fn fuzz(target: &str, decode: impl Fn(&[u8])) {
    let corpus = corpus(target);
    for (path, input) in &corpus {
        assert!(survives(&decode, input), "{target} fails on {}", path.display());
    }
    let seed = setting("FUZZ_SEED").unwrap_or_else(rand::random);
    let span = setting("FUZZ_SECONDS").map(Duration::from_secs);
    let (mut rng, began_at, mut count) = (SmallRng::seed_from_u64(seed), Instant::now(), 0_u32);
    while span.map_or(count < INPUTS, |span| began_at.elapsed() < span) {
        let input = input(&mut rng, &corpus);
        if !survives(&decode, &input) {
            let small = shrink(&decode, input);
            let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-{target}-{seed}"));
            std::fs::write(&kept, &small).unwrap();
            panic!(
                "{target} fails (FUZZ_SEED={seed}) on {:?}, kept in {}",
                String::from_utf8_lossy(&small),
                kept.display()
            );
        }
        count += 1;
    }
    eprintln!("{target}: {count} inputs, FUZZ_SEED={seed}");
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| {
        value.parse().unwrap_or_else(|_wrong| panic!("{name} is a number, not {value:?}"))
    })
}

fn survives(decode: &impl Fn(&[u8]), input: &[u8]) -> bool {
    catch_unwind(AssertUnwindSafe(|| decode(input))).is_ok()
}

fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(target);
    let entries =
        std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} is empty", folder.display());
    paths.into_iter().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

fn input(rng: &mut SmallRng, corpus: &[(PathBuf, Vec<u8>)]) -> Vec<u8> {
    if rng.random_ratio(1, 10) {
        return bytes(rng);
    }
    let pick =
        |rng: &mut SmallRng| corpus.choose(rng).map(|(_, input)| input.clone()).unwrap_or_default();
    let mut input = pick(rng);
    for _ in 0..rng.random_range(1..8) {
        let (from, to) = range(rng, input.len());
        match rng.random_range(0..8) {
            0 => drop(input.drain(from..to)),
            1 => input.truncate(from),
            2 => drop(input.splice(from..from, bytes(rng).into_iter().take(8))),
            3 => drop(input.splice(from..to, TOKENS.choose(rng).unwrap().iter().copied())),
            4 => {
                let other = pick(rng);
                let (start, end) = range(rng, other.len());
                drop(input.splice(from..to, other[start..end].iter().copied()));
            }
            5 => {
                let part = input[from..to].to_vec();
                drop(input.splice(to..to, part));
            }
            6 if from < input.len() => input[from] = rng.random(),
            _ if from < input.len() => input[from] ^= 1 << rng.random_range(0..8),
            _ => {}
        }
    }
    input.truncate(BYTES_MAX);
    input
}

fn bytes(rng: &mut SmallRng) -> Vec<u8> {
    let length = rng.random_range(0..64);
    (0..length).map(|_| rng.random()).collect()
}

fn range(rng: &mut SmallRng, length: usize) -> (usize, usize) {
    let (one, other) = (rng.random_range(0..=length), rng.random_range(0..=length));
    (one.min(other), one.max(other))
}

/// Removes the parts of an input that the failure does not need, in pieces that become smaller.
fn shrink(decode: &impl Fn(&[u8]), mut input: Vec<u8>) -> Vec<u8> {
    let mut size = input.len().div_ceil(2);
    while size > 0 {
        let mut from = 0;
        while from < input.len() {
            let to = (from + size).min(input.len());
            let rest = [&input[..from], &input[to..]].concat();
            if survives(decode, &rest) {
                from = to;
            } else {
                input = rest;
            }
        }
        size = if size == 1 { 0 } else { size.div_ceil(2) };
    }
    input
}

#[test]
#[should_panic(expected = "on \"!\"")]
fn a_decoder_that_fails_is_found_and_its_input_made_small() {
    fuzz("delay", |input| assert!(!input.contains(&b'!')));
}
