//! A window on the next bytes of a stream, for bytes that are computed as they are read.

/// The next bytes of a stream.
#[derive(Debug)]
pub(super) struct Window<'w, I> {
    rest: Option<I>,
    bytes: &'w mut [u8; LEN],
    /// Bounds of the bytes in the window that have not been passed yet.
    from: usize,
    to: usize,
}

impl<'w, I: Iterator<Item = u8>> Window<'w, I> {
    pub(super) fn new(rest: I, bytes: &'w mut [u8; LEN]) -> Self {
        Self {
            rest: Some(rest),
            bytes,
            from: 0,
            to: 0,
        }
    }

    /// The next bytes: at least [`AHEAD`], unless the stream ends before.
    pub(super) fn ahead(&mut self) -> &[u8] {
        if self.to - self.from < AHEAD
            && let Some(rest) = &mut self.rest
        {
            self.bytes.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
            for (slot, byte) in self.bytes[self.to..].iter_mut().zip(rest) {
                *slot = byte;
                self.to += 1;
            }
            if self.to < LEN {
                self.rest = None;
            }
        }
        &self.bytes[self.from..self.to]
    }

    /// Passes `len` of the bytes that [`Self::ahead`] gave.
    pub(super) fn pass(&mut self, len: usize) {
        self.from += len;
    }
}

/// Room for bytes.
pub(super) const LEN: usize = 1024;

/// Minimum number of bytes in the window.
pub(super) const AHEAD: usize = LEN / 2;
