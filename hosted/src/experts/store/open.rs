//! Opening a store: files, pools, a working device.
#![forbid(unsafe_code)]

use super::super::cold::{ColdNeurons, Home};
use super::super::device::{
    self, Completions, DIRECT_ALIGN, DeviceFile, DeviceSetup, ExpertIo, open_file,
};
use super::super::options::ExpertOptions;
use super::super::places::{Found, Places, head_with_experts};
use super::super::policy::Worth;
use super::super::trace::TraceWriter;
use super::ahead::{Ahead, N_MORE};
use super::check::Checks;
use super::fetch::{Flights, N_READS};
use super::need::Need;
use super::order::Order;
use super::slots::Slots;
use super::{ExpertError, ExpertStore, Info, Shared, State, Tracing};
use crate::file::ModelFile;
use crate::host::drives::Drives;
use crate::host::memory::AlignedMemory;
use crate::host::placement::pages;
use crate::host::process::allow_files;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use sluice_core::gguf::Gguf;
use sluice_core::model::ModelConfig;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

/// Maximum memory for rows to be turned into panels, unless one expert takes more.
const STAGING_BYTES: usize = 48 << 20;
/// At most one slot in this number holds a guess: each takes a slot from an expert that was needed before.
const GUESSES_SHARE: usize = 16;

impl ExpertStore {
    /// Opens the experts of a model's file, with header `gguf` and shape `config`, to be read according to `options`;
    /// includes the experts of a head that predicts a token further.
    ///
    /// # Errors
    /// [`ExpertError`]: the model has no experts, memory is short even for one, or a file or device is unavailable.
    pub fn open(
        file: &ModelFile,
        gguf: &Gguf<'_>,
        config: &ModelConfig,
        options: ExpertOptions,
    ) -> Result<Self, ExpertError> {
        let slc = file.slc().map_err(|error| ExpertError::OtherFile {
            path: file.name().into(),
            reason: error.to_string(),
        })?;
        let slc = slc.as_ref();
        let head = head_with_experts(gguf, slc, config);
        let head = head.as_ref();
        let head_layer = head.map(|_| config.n_layer());
        let places = Places::find(&Found {
            file,
            gguf,
            slc,
            config,
            head,
        })?;
        Self::of_places(places, None, head_layer, options)
    }

    /// Opens the cold neurons of a model's file, whose weights are at `home`.
    ///
    /// # Errors
    /// [`ExpertError`]: memory is short for a layer's, or a file or device is unavailable.
    pub(crate) fn of_neurons(
        file: &ModelFile,
        cold: &ColdNeurons,
        home: Home,
        options: ExpertOptions,
    ) -> Result<Self, ExpertError> {
        let places = Places::of_neurons(file, cold)?;
        let options = ExpertOptions {
            // Which neurons are active is not guessed, but predicted by core.
            prefetch: false,
            ..options
        };
        Self::of_places(places, Some(home), None, options)
    }

    fn of_places(
        places: Places,
        home: Option<Home>,
        head_layer: Option<usize>,
        options: ExpertOptions,
    ) -> Result<Self, ExpertError> {
        let mut notes = Vec::new();
        let (files, copies) = files(&places, &options.dirs, &mut notes)?;
        let shared = Arc::new(Shared::new(places, home, &options, &files, copies)?);
        let paths = files.iter().map(|file| file.path.as_path());
        let drives = Drives::of_all(paths).unwrap_or_default();
        if !drives.nodes.is_empty() && shared.home.is_none() {
            shared.bind(&drives.nodes, &mut notes);
        }
        let device = open_device(&shared, options, files, &drives, &mut notes)?;
        notes.extend(device.notes());
        let _first = shared.device.set(device);
        let nodes = drives.nodes;
        Ok(Self {
            shared,
            notes,
            process: std::process::id(),
            nodes,
            head_layer,
        })
    }
}

impl Shared {
    fn new(
        places: Places,
        home: Option<Home>,
        options: &ExpertOptions,
        files: &[DeviceFile],
        copies: Vec<Vec<usize>>,
    ) -> Result<Self, ExpertError> {
        let (slot_bytes, cache_bytes) = (places.slot_bytes, options.cache_bytes);
        let n_slots = (cache_bytes / slot_bytes).min(places.n_experts);
        if n_slots == 0 {
            return Err(ExpertError::TooSmall {
                cache_bytes,
                expert_bytes: slot_bytes,
            });
        }
        let layer_bytes = slot_bytes * places.n_in_layer_max as usize;
        let n_pieces = places.n_pieces_max();
        if home.is_some() && n_slots < places.n_in_layer_max as usize {
            return Err(ExpertError::TooSmallForLayer {
                cache_bytes,
                layer_bytes,
            });
        }
        let reads_ahead = options.prefetch && n_slots < places.n_experts;
        let n_guesses = match reads_ahead {
            true => (n_slots / GUESSES_SHARE).min(places.n_used_max + N_MORE),
            false => 0,
        };
        let slots = Slots::new(&places, n_slots, home.is_none());
        let slots = slots.map_err(|error| ExpertError::Memory(Arc::new(error)))?;
        let n_in_layer = places.n_in_layer_max as usize;
        let profile = options
            .profile
            .as_ref()
            .map(|profile| profile.for_slots(n_slots));
        let state = State {
            worth: Worth::new(options.policy, places.n_ids(), n_slots, profile.as_ref()),
            info: vec![Info::default(); n_slots].into(),
            free: (0..n_slots).rev().collect(),
            order: Order::new(n_slots),
            guessed: Vec::with_capacity(n_guesses),
            need: Need::new(places.n_ids(), n_in_layer),
            flights: flights(&places, files, copies)?,
            ahead: Ahead::new(places.layers.len(), n_guesses),
            stats: super::ExpertStats {
                n_slots,
                slot_bytes,
                n_experts: places.n_experts,
                ..Default::default()
            },
            error: None,
            told: None,
            trace: options
                .trace
                .as_deref()
                .map(|path| tracing(path, n_in_layer))
                .transpose()?,
        };
        let counts = || (0..n_in_layer).map(|_| AtomicU32::new(0)).collect();
        Ok(Self {
            slots,
            to_read: [counts(), counts()],
            layer: AtomicUsize::new(0),
            arrivals: AtomicU32::new(0),
            is_short: AtomicBool::new(false),
            refused: AtomicU64::new(u64::MAX),
            stall_ns: AtomicU64::new(0),
            checks: options.check.then(|| Checks::new(places.n_ids(), n_pieces)),
            looks_ahead: AtomicBool::new(n_guesses > 0 || state.trace.is_some()),
            state: Mutex::new(state),
            device: OnceLock::new(),
            is_closing: AtomicBool::new(false),
            turn: Mutex::new(()),
            places,
            home,
        })
    }
}

impl Shared {
    /// Takes the pool's pages from the drives' nodes, so that what is read does not cross to another.
    fn bind(&self, nodes: &[usize], notes: &mut Vec<String>) {
        if let Err(error) = pages::bind_to(self.slots.memory(), nodes) {
            notes.push(format!(
                "the memory for experts is not on the NUMA nodes of the drives: {error}"
            ));
        }
    }
}

/// Room for reads under way.
fn flights(
    places: &Places,
    files: &[DeviceFile],
    copies: Vec<Vec<usize>>,
) -> Result<Flights, ExpertError> {
    let staging_bytes = match places.rows_bytes_max {
        0 => 0,
        // A piece may begin anywhere.
        len => (len + DIRECT_ALIGN).next_multiple_of(DIRECT_ALIGN),
    };
    let n_staging = STAGING_BYTES.checked_div(staging_bytes).unwrap_or(0);
    let n_staging = if staging_bytes == 0 {
        0
    } else {
        n_staging.clamp(2, N_READS)
    };
    let staging = AlignedMemory::zeroed(staging_bytes * n_staging)
        .map_err(|error| ExpertError::Memory(Arc::new(error)))?;
    let drives = files.iter().map(|file| file.path.clone()).collect();
    Ok(Flights::new(staging, staging_bytes, drives, copies))
}

fn tracing(path: &Path, n_in_layer: usize) -> Result<Tracing, ExpertError> {
    let writer = TraceWriter::append(path).map_err(|error| ExpertError::Trace {
        path: path.to_owned(),
        reason: error.to_string(),
    })?;
    Ok(Tracing {
        writer,
        path: path.to_owned(),
        n_steps: 0,
        hits: Vec::with_capacity(n_in_layer),
        experts: Vec::with_capacity(n_in_layer),
    })
}

/// The model's files, and their copies in other directories; for each of the model's files the indices of its copies.
fn files(
    places: &Places,
    dirs: &[PathBuf],
    notes: &mut Vec<String>,
) -> Result<(Vec<DeviceFile>, Vec<Vec<usize>>), ExpertError> {
    let (mut files, mut copies) = (Vec::new(), Vec::new());
    let n_files = places.paths.len() * (1 + dirs.len());
    allow_files(n_files).map_err(|error| ExpertError::Files { n_files, error })?;
    for path in &places.paths {
        let original = open_file(path)?;
        let mut indices = vec![files.len()];
        for dir in dirs {
            let copy = dir.join(path.file_name().unwrap_or_default());
            let copy = open_file(&copy)?;
            if copy.len_bytes != original.len_bytes {
                let reason = format!(
                    "it has {} bytes, expected {}",
                    copy.len_bytes, original.len_bytes
                );
                let path = copy.path;
                return Err(ExpertError::OtherFile { path, reason });
            }
            compare(&original, &copy, places.paths.len())?;
            indices.push(files.len() + indices.len());
            files.push(copy);
        }
        files.insert(indices[0], original);
        copies.push(indices);
    }
    let mut buffered = files.iter().filter(|file| !file.is_direct);
    if let Some(first) = buffered.next() {
        let (path, more) = (first.path.display(), buffered.count());
        let which = match more {
            0 => format!("{path} is"),
            _ => format!("{path} and {more} more are"),
        };
        notes.push(format!(
            "{which} read through the page cache, as the file system does not support direct reads"
        ));
    }
    Ok((files, copies))
}

/// Compares a copy with one of the model's `n_files` files: the header's first bytes, and a page here and there.
fn compare(original: &DeviceFile, copy: &DeviceFile, n_files: usize) -> Result<(), ExpertError> {
    let no_memory = |error| ExpertError::Memory(Arc::new(error));
    let head_bytes = (HEAD_BYTES / n_files).next_multiple_of(DIRECT_ALIGN);
    let n_samples = (SAMPLES / n_files as u64).max(1);
    let mut rooms = [
        AlignedMemory::zeroed(head_bytes).map_err(no_memory)?,
        AlignedMemory::zeroed(head_bytes).map_err(no_memory)?,
    ];
    let n_pages = original.len_bytes / DIRECT_ALIGN as u64;
    let page = |i| n_pages * i / n_samples * DIRECT_ALIGN as u64;
    let pages = (0..n_samples).map(|i| (page(i), DIRECT_ALIGN));
    for (offset, len) in core::iter::once((0, head_bytes)).chain(pages) {
        let mut found = [0; 2];
        for ((file, room), n) in [original, copy].into_iter().zip(&mut rooms).zip(&mut found) {
            let read = file.file.read_at(&mut room[..len], offset);
            *n = read.map_err(|error| ExpertError::Open {
                path: file.path.clone(),
                error: Arc::new(error),
            })?;
        }
        let [a, b] = &rooms;
        if a[..found[0]] != b[..found[1]] {
            let reason = format!("it differs from byte {offset} on");
            let path = copy.path.clone();
            return Err(ExpertError::OtherFile { path, reason });
        }
    }
    Ok(())
}

/// Bytes at the beginning of a model's file, and pages of it, that a copy is compared by; of many files fewer of each.
const HEAD_BYTES: usize = 1 << 20;
const SAMPLES: u64 = 256;

fn open_device(
    shared: &Arc<Shared>,
    options: ExpertOptions,
    files: Vec<DeviceFile>,
    drives: &Drives,
    notes: &mut Vec<String>,
) -> Result<Box<dyn device::Device>, ExpertError> {
    let mut memory = shared.slots.chunks();
    let staging = shared.lock().flights.staging();
    memory.extend((staging.1 > 0).then_some(staging));
    let setup = |files| DeviceSetup {
        files,
        memory: memory.clone(),
        n_reads: N_READS,
        completions: Arc::clone(shared) as Arc<dyn Completions>,
        cpus: drives.cpus().0,
    };
    if let Some(device) = &options.device {
        let what = "the device that was given";
        let opened = device.open(setup(files));
        return opened.map_err(|reason| ExpertError::Device { what, reason });
    }
    let io = match options.io {
        Some(io) => io,
        None => match device::probe_uring() {
            Ok(()) => ExpertIo::Uring,
            Err(reason) => {
                notes.push(format!("reading experts with pread: {reason}"));
                ExpertIo::Pread
            }
        },
    };
    let opened = device::open(io, setup(files));
    opened.map_err(|reason| ExpertError::Device {
        what: io.name(),
        reason,
    })
}
