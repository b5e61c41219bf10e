//! The SHA-256 of a file while it is written.
#![forbid(unsafe_code)]

use core::ops::Range;
use sha2::{Digest as _, Sha256};
use sluice_core::state::Identity;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

/// A thread that reads a file back while others write it, in any order, and hashes what precedes the first gap.
#[derive(Debug)]
pub(super) struct HashFollower {
    written: Sender<Range<u64>>,
    thread: JoinHandle<io::Result<Sha256>>,
}

impl HashFollower {
    /// Follows the writing of `file`.
    ///
    /// # Errors
    /// No thread, or no further file descriptor.
    pub(super) fn start(file: &File) -> io::Result<Self> {
        let file = file.try_clone()?;
        let (written, ranges) = mpsc::channel();
        let thread = thread::Builder::new().name("hash".into());
        let thread = thread.spawn(move || follow(&file, &ranges))?;
        Ok(Self { written, thread })
    }

    /// Notes that a range of the file is written.
    pub(super) fn written(&self, range: Range<u64>) {
        // A thread that has failed reports that at the end.
        let _sent = self.written.send(range);
    }

    /// The SHA-256 of the complete file.
    ///
    /// # Errors
    /// The file could not be read back.
    pub(super) fn finish(self) -> io::Result<Identity> {
        // Everything, also what was not noted, such as padding at the end.
        self.written(0..u64::MAX);
        drop(self.written);
        let hash = self.thread.join();
        let hash = hash.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok(Identity(hash.finalize().into()))
    }
}

fn follow(file: &File, ranges: &Receiver<Range<u64>>) -> io::Result<Sha256> {
    let (mut hash, mut piece) = (Sha256::new(), vec![0; PIECE_BYTES]);
    let (mut at, mut waiting) = (0, BTreeMap::new());
    let mut hash_to = |at: &mut u64, end: u64| -> io::Result<()> {
        while *at < end {
            let len = usize::try_from(end - *at).map_or(PIECE_BYTES, |rest| rest.min(PIECE_BYTES));
            file.read_exact_at(&mut piece[..len], *at)?;
            hash.update(&piece[..len]);
            *at += len as u64;
        }
        Ok(())
    };
    for range in ranges {
        waiting.insert(range.start, range.end);
        while let Some((&start, &end)) = waiting.first_key_value()
            && start <= at
        {
            waiting.pop_first();
            hash_to(&mut at, end.min(file.metadata()?.len()))?;
        }
    }
    Ok(hash)
}

/// Bytes read at once.
const PIECE_BYTES: usize = 1 << 20;
