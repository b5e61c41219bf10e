//! A program in a pseudo-terminal.

use core::time::Duration;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// A program whose terminal we control.
pub(crate) struct Pty {
    master: File,
    pub(crate) child: Child,
    seen: Arc<Mutex<Vec<u8>>>,
    /// The bytes of [`Self::seen`] that were awaited.
    passed: usize,
}

impl Pty {
    pub(crate) fn start(mut command: Command) -> Self {
        command.env("TERM", "xterm");
        Self::start_as_is(command)
    }

    /// With the command's own `TERM`.
    pub(crate) fn start_as_is(mut command: Command) -> Self {
        let (mut master, mut slave) = (-1, -1);
        let (name, termios) = (core::ptr::null_mut(), core::ptr::null());
        let size = window(24, 80);
        // SAFETY: two descriptors to write to, and a window size to read.
        let opened = unsafe {
            libc::openpty(
                &raw mut master,
                &raw mut slave,
                name,
                termios,
                &raw const size,
            )
        };
        assert_eq!(opened, 0, "a pseudo-terminal can be had");
        // SAFETY: just opened, and owned by nothing else.
        let master = unsafe { File::from_raw_fd(master) };
        // SAFETY: as above.
        let slave = unsafe { OwnedFd::from_raw_fd(slave) };
        let stdio = || Stdio::from(slave.try_clone().expect("a descriptor"));
        command.stdin(stdio()).stdout(stdio()).stderr(stdio());
        let into_session = || {
            // SAFETY: async-signal-safe.
            unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
            // SAFETY: as above.
            unsafe { libc::setsid() };
            // SAFETY: as above; stdin is the terminal.
            unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) };
            Ok(())
        };
        // SAFETY: the closure makes async-signal-safe calls only.
        unsafe { command.pre_exec(into_session) };
        let child = command.spawn().expect("the program starts");
        drop(command);
        drop(slave);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (mut reader, into) = (master.try_clone().expect("a descriptor"), Arc::clone(&seen));
        std::thread::spawn(move || {
            let mut room = vec![0; 65536];
            while let Ok(n) = reader.read(&mut room) {
                if n == 0 {
                    break;
                }
                into.lock().expect("no panic").extend(&room[..n]);
            }
        });
        Self {
            master,
            child,
            seen,
            passed: 0,
        }
    }

    /// Types.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.master.write_all(bytes).expect("the program reads");
    }

    /// Everything that was shown so far.
    pub(crate) fn seen(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().expect("no panic")).into_owned()
    }

    /// Waits until `text` appears after the text awaited last.
    pub(crate) fn expect(&mut self, text: &str) {
        let until = Instant::now() + Duration::from_secs(120);
        loop {
            let found = {
                let seen = self.seen.lock().expect("no panic");
                let at = seen[self.passed..]
                    .windows(text.len())
                    .position(|w| w == text.as_bytes());
                at.map(|at| self.passed + at + text.len())
            };
            if let Some(end) = found {
                self.passed = end;
                return;
            }
            assert!(
                Instant::now() < until,
                "{text:?} was not shown: {}",
                tail(&self.seen())
            );
            wait(Duration::from_millis(5));
        }
    }

    /// Waits until at least `len` more bytes have been shown.
    pub(crate) fn expect_bytes(&mut self, len: usize) {
        let until = Instant::now() + Duration::from_secs(120);
        while self.seen.lock().expect("no panic").len() < self.passed + len {
            assert!(Instant::now() < until, "no text: {}", tail(&self.seen()));
            wait(Duration::from_millis(5));
        }
        self.passed += len;
    }

    /// Changes the size of the window; the program is sent SIGWINCH.
    pub(crate) fn resize(&self, rows: u16, columns: u16) {
        let size = window(rows, columns);
        // SAFETY: a window size to read.
        let set =
            unsafe { libc::ioctl(self.master.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
        assert_eq!(set, 0);
    }

    /// The exit code, once the program has ended.
    pub(crate) fn code(&mut self) -> Option<i32> {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(status) = self.child.try_wait().expect("it can be waited for") {
                return status.code();
            }
            assert!(
                Instant::now() < until,
                "it does not end: {}",
                tail(&self.seen())
            );
            wait(Duration::from_millis(5));
        }
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}

fn window(rows: u16, columns: u16) -> libc::winsize {
    libc::winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

/// Lets time pass, as there is no other sign of what is awaited.
pub(crate) fn wait(time: Duration) {
    std::thread::park_timeout(time);
}

fn tail(text: &str) -> &str {
    let mut at = text.len().saturating_sub(2000);
    while !text.is_char_boundary(at) {
        at += 1;
    }
    &text[at..]
}
