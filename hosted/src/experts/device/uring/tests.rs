//! Rings of which `io_uring_enter` fails.

use super::super::{DIRECT_ALIGN, open_file};
use super::*;
use crate::host::memory::AlignedMemory;
use core::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};

/// A read's token and result.
type Done = (u32, Result<usize, i32>);

struct Sent {
    sender: Mutex<Sender<Done>>,
    tick: Duration,
    n_ticks: AtomicUsize,
}

impl Sent {
    fn new(sender: Sender<Done>, tick: Duration) -> Arc<Self> {
        Arc::new(Self {
            sender: Mutex::new(sender),
            tick,
            n_ticks: AtomicUsize::new(0),
        })
    }
}

impl Completions for Sent {
    fn completed(&self, token: u32, result: Result<usize, i32>) {
        self.sender.lock().unwrap().send((token, result)).unwrap();
    }

    fn tick(&self) -> Duration {
        self.n_ticks.fetch_add(1, Ordering::Relaxed);
        self.tick
    }
}

/// `io_uring_enter` fails with `errno` from now on, in this thread and those that it starts.
fn fail_with(errno: i32) {
    let of = |code: u32, k: u32| libc::sock_filter {
        code: u16::try_from(code).unwrap(),
        jt: 0,
        jf: 0,
        k,
    };
    let mut filter = [
        // The call's number; the error for one, and leave for the others.
        of(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        libc::sock_filter {
            jf: 1,
            ..of(
                libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
                u32::try_from(libc::SYS_io_uring_enter).unwrap(),
            )
        },
        of(
            libc::BPF_RET | libc::BPF_K,
            libc::SECCOMP_RET_ERRNO | errno.cast_unsigned(),
        ),
        of(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: 4,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: concerns this thread and its children alone.
    let is_set = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(is_set, 0);
    let mode = libc::SECCOMP_MODE_FILTER;
    // SAFETY: a whole program, which the kernel copies.
    let is_set = unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program, 0, 0) };
    assert_eq!(is_set, 0);
}

/// A device over this crate's manifest, with room for a read, and what it reports.
fn device(memory: &mut AlignedMemory) -> (Box<dyn Device>, Receiver<Done>) {
    let (sender, receiver) = channel();
    let sent = Sent::new(sender, Duration::from_millis(50));
    (device_for(memory, sent), receiver)
}

fn device_for(memory: &mut AlignedMemory, completions: Arc<dyn Completions>) -> Box<dyn Device> {
    let setup = DeviceSetup {
        files: vec![
            open_file(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml").as_ref()).unwrap(),
        ],
        memory: vec![(NonNull::from(&mut **memory).cast(), memory.len())],
        n_reads: 9,
        completions,
        cpus: Vec::new(),
    };
    Uring::open(setup).unwrap()
}

/// In a thread of its own: reads that are started after `fail_with(errno)`, which the waiting thread meets as well
/// if `everywhere`.
fn results(errno: i32, everywhere: bool) -> Vec<Done> {
    let test = move || {
        let mut memory = AlignedMemory::zeroed(DIRECT_ALIGN).unwrap();
        let into = NonNull::from(&mut *memory).cast();
        if everywhere {
            fail_with(errno);
        }
        let (device, results) = device(&mut memory);
        if !everywhere {
            fail_with(errno);
        }
        let tokens = 0..9;
        for token in tokens.clone() {
            device.start(Read {
                token,
                file: 0,
                offset: 0,
                into,
                len: DIRECT_ALIGN,
            });
            if token % 2 == 1 {
                device.flush();
            }
        }
        device.flush();
        let wait = |_| results.recv_timeout(Duration::from_secs(10)).unwrap();
        let mut found: Vec<_> = tokens.map(wait).collect();
        device.close();
        drop(device);
        assert_eq!(results.try_recv().ok(), None, "each is reported once");
        found.sort_unstable();
        found
    };
    std::thread::spawn(test).join().unwrap()
}

fn is_possible() -> bool {
    let refused = probe().err();
    refused.iter().for_each(|why| eprintln!("SKIPPED: {why}"));
    refused.is_none()
}

#[test]
fn reads_that_the_kernel_never_takes_fail_by_token() {
    if !is_possible() {
        return;
    }
    let expected = |errno| (0..9).map(|token| (token, Err(errno))).collect::<Vec<_>>();
    assert_eq!(results(libc::EIO, true), expected(libc::EIO));
    assert_eq!(results(libc::ENXIO, false), expected(libc::ENXIO));
}

#[test]
fn reads_that_the_kernel_has_no_room_for_are_taken_later() {
    if !is_possible() {
        return;
    }
    for errno in [libc::EAGAIN, libc::EBUSY] {
        let found = results(errno, false);
        assert!(
            found
                .iter()
                .all(|(_, result)| matches!(result, Ok(n) if *n > 0)),
            "{found:?}"
        );
    }
}

#[test]
fn a_device_closes_though_the_kernel_takes_nothing() {
    if !is_possible() {
        return;
    }
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut memory = AlignedMemory::zeroed(DIRECT_ALIGN).unwrap();
        let into = NonNull::from(&mut *memory).cast();
        fail_with(libc::EAGAIN);
        let (device, results) = device(&mut memory);
        device.start(Read {
            token: 7,
            file: 0,
            offset: 0,
            into,
            len: DIRECT_ALIGN,
        });
        device.flush();
        device.close();
        sender.send(results.try_recv().ok()).unwrap();
    });
    let found = receiver.recv_timeout(Duration::from_secs(10));
    assert_eq!(
        found,
        Ok::<_, RecvTimeoutError>(Some((7, Err(libc::ECANCELED))))
    );
}

#[test]
fn a_ring_that_takes_nothing_any_more_keeps_no_thread_awake() {
    if !is_possible() {
        return;
    }
    let test = || {
        let mut memory = AlignedMemory::zeroed(DIRECT_ALIGN).unwrap();
        let into = NonNull::from(&mut *memory).cast();
        fail_with(libc::EIO);
        let (sender, results) = channel();
        let sent = Sent::new(sender, Duration::from_secs(100));
        let device = device_for(&mut memory, sent.clone());
        let begun = std::time::Instant::now();
        for token in 0..2 {
            device.start(Read {
                token,
                file: 0,
                offset: 0,
                into,
                len: DIRECT_ALIGN,
            });
            device.flush();
            let done = results.recv_timeout(Duration::from_secs(50));
            assert_eq!(done, Ok((token, Err(libc::EIO))));
            let idle = results.recv_timeout(Duration::from_millis(500));
            assert_eq!(idle, Err(RecvTimeoutError::Timeout));
        }
        device.close();
        assert!(begun.elapsed() < Duration::from_secs(50));
        sent.n_ticks.load(Ordering::Relaxed)
    };
    let n_ticks = std::thread::spawn(test).join().unwrap();
    assert!(n_ticks < 50, "{n_ticks}");
}

/// Reads the same block again as long as some are left.
struct Chain {
    device: OnceLock<Box<dyn Device>>,
    read: Mutex<Read>,
    n_left: AtomicUsize,
    is_done: Mutex<Sender<()>>,
}

impl Completions for Chain {
    fn completed(&self, _: u32, result: Result<usize, i32>) {
        result.unwrap();
        if self.n_left.fetch_sub(1, Ordering::SeqCst) == 1 {
            return self.is_done.lock().unwrap().send(()).unwrap();
        }
        let device = self.device.get().unwrap();
        device.start(*self.read.lock().unwrap());
        device.flush();
    }

    fn tick(&self) -> Duration {
        Duration::from_secs(100)
    }
}

#[test]
fn reads_that_a_completion_starts_take_no_call_of_their_own() {
    const N: usize = 100;
    if !is_possible() {
        return;
    }
    let mut memory = AlignedMemory::zeroed(DIRECT_ALIGN).unwrap();
    let into = NonNull::from(&mut *memory).cast();
    let read = Read {
        token: 0,
        file: 0,
        offset: 0,
        into,
        len: DIRECT_ALIGN,
    };
    let (is_done, done) = channel();
    let chain = Arc::new(Chain {
        device: OnceLock::new(),
        read: Mutex::new(read),
        n_left: AtomicUsize::new(N),
        is_done: Mutex::new(is_done),
    });
    let device = device_for(&mut memory, chain.clone());
    let device = chain.device.get_or_init(|| device);
    device.start(read);
    device.flush();
    done.recv_timeout(Duration::from_secs(50)).unwrap();
    device.close();
    // A wait for each read, the first submission, the wait for the end, and its submission.
    let n = device.n_enters();
    assert!(n <= N as u64 + 4, "{n}");
}
