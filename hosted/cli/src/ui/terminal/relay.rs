//! A pseudo-terminal between the terminal and a line editor.

use super::filter::Filter;
use super::modes::Modes;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, fcntl_setfl, open};
use rustix::io::Errno;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{OptionalActions, SpecialCodeIndex, tcsetattr};
use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

/// Reads the terminal at all times, and passes on to stdin what an editor can process, one line per
/// call.
#[derive(Debug)]
pub(super) struct Relay {
    shared: Arc<Shared>,
    wake: PipeWriter,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Number of lines requested.
    lines: AtomicUsize,
    /// An editor is reading.
    is_wanted: AtomicBool,
    is_over: AtomicBool,
}

impl Relay {
    /// Replaces stdin by a pseudo-terminal.
    ///
    /// # Errors
    /// A pseudo-terminal cannot be created.
    pub(super) fn start(modes: &'static Modes) -> io::Result<Self> {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let name = ptsname(&master, Vec::new())?;
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let slave = open(&name, flags, Mode::empty())?;
        tcsetattr(&slave, OptionalActions::Now, modes.keys())?;
        fcntl_setfl(&master, OFlags::NONBLOCK)?;
        let (woken, wake) = io::pipe()?;
        let shared = Arc::new(Shared::default());
        let codes = &modes.keys().special_codes;
        let worker = Worker {
            modes,
            master,
            woken,
            shared: Arc::clone(&shared),
            filter: Filter::new([
                codes[SpecialCodeIndex::VINTR],
                codes[SpecialCodeIndex::VQUIT],
            ]),
            held: None,
            lines: 0,
            is_ended: false,
        };
        let thread = std::thread::Builder::new()
            .name("terminal".into())
            .spawn(move || worker.run())?;
        rustix::stdio::dup2_stdin(&slave)?;
        Ok(Self {
            shared,
            wake,
            thread: Some(thread),
        })
    }

    /// Lets an editor have a line.
    pub(super) fn begin(&mut self) {
        self.shared.lines.fetch_add(1, Ordering::AcqRel);
        self.tell(true);
    }

    /// The editor has read its line.
    pub(super) fn end(&mut self) {
        self.tell(false);
    }

    fn tell(&mut self, is_wanted: bool) {
        self.shared.is_wanted.store(is_wanted, Ordering::Release);
        // If this fails, the thread is gone, and with it the terminal.
        let _woken = self.wake.write_all(b"!");
    }

    /// Restores the terminal as stdin.
    pub(super) fn stop(mut self, modes: &Modes) {
        self.shared.is_over.store(true, Ordering::Release);
        self.tell(false);
        let _back = rustix::stdio::dup2_stdin(modes.terminal());
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

/// The thread's state.
struct Worker {
    modes: &'static Modes,
    master: OwnedFd,
    woken: PipeReader,
    shared: Arc<Shared>,
    filter: Filter,
    /// A line was passed on; the time since all of it has been read, once it has.
    held: Option<Option<Instant>>,
    lines: usize,
    /// The terminal is gone.
    is_ended: bool,
}

impl Worker {
    fn run(mut self) {
        let mut room = vec![0; 1 << 16];
        while !self.shared.is_over.load(Ordering::Acquire) {
            let lines = self.shared.lines.load(Ordering::Acquire);
            if lines != self.lines {
                self.lines = lines;
                self.held = None;
            }
            let is_wanted = self.shared.is_wanted.load(Ordering::Acquire);
            self.look_at_held();
            let feeds = is_wanted && self.held.is_none() && self.filter.front().is_some();
            if self.is_ended && is_wanted && self.held.is_none() && !feeds {
                // Without its other side, the editor's terminal has ended as well.
                return;
            }
            let reads = !self.is_ended && self.filter.len_bytes() < KEPT_BYTES_MAX;
            let Ok(ready) = self.wait(reads, feeds, is_wanted) else {
                return;
            };
            if ready.woken && !matches!(self.woken.read(&mut room), Ok(1..)) {
                return;
            }
            if ready.typed {
                match rustix::io::read(self.modes.terminal(), &mut room[..]) {
                    Ok(n @ 1..) => self.filter.push(&room[..n]),
                    Err(Errno::INTR | Errno::AGAIN) => {}
                    _ => self.is_ended = true,
                }
            }
            if ready.takes {
                self.feed();
            }
        }
    }

    /// A line that was read long ago without making the editor return was not a complete line.
    fn look_at_held(&mut self) {
        let Some(since) = &mut self.held else { return };
        match since {
            Some(since) if since.elapsed().as_millis() > 1000 => self.held = None,
            Some(_) => {}
            None => {
                if matches!(rustix::io::ioctl_fionread(rustix::stdio::stdin()), Ok(0)) {
                    *since = Some(Instant::now());
                }
            }
        }
    }

    fn feed(&mut self) {
        let Some(piece) = self.filter.front() else {
            return;
        };
        match rustix::io::write(&self.master, &piece.bytes) {
            Ok(n) => {
                if self.filter.consume(n) {
                    self.held = Some(None);
                }
            }
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(_) => self.is_ended = true,
        }
    }

    fn wait(&self, reads: bool, feeds: bool, is_wanted: bool) -> Result<Ready, Errno> {
        // Descriptors that are not awaited are omitted: they would be ready as soon as they are
        // closed.
        let mut polled = Vec::with_capacity(3);
        polled.push(PollFd::new(&self.woken, PollFlags::IN));
        if reads {
            polled.push(PollFd::new(self.modes.terminal(), PollFlags::IN));
        }
        if feeds {
            polled.push(PollFd::new(&self.master, PollFlags::OUT));
        }
        let pause = Timespec {
            tv_sec: 0,
            tv_nsec: 50_000_000,
        };
        let pause = (self.held.is_some() && is_wanted).then_some(&pause);
        match poll(&mut polled, pause) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        let mut ready = polled.iter().map(|fd| !fd.revents().is_empty());
        let mut next = |is_there: bool| is_there && ready.next().unwrap_or(false);
        Ok(Ready {
            woken: next(true),
            typed: next(reads),
            takes: next(feeds),
        })
    }
}

struct Ready {
    woken: bool,
    typed: bool,
    takes: bool,
}

/// Maximum number of bytes kept for an editor; then the terminal has to wait.
const KEPT_BYTES_MAX: usize = 64 << 20;
