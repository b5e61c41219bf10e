//! The server that a client uses: one that is there, or one that is started for it.

use super::http::get;
use super::signals;
use crate::outcome::UsageError;
use anyhow::{Context as _, anyhow, bail};
use core::hash::{BuildHasher as _, Hasher as _};
use core::time::Duration;
use rustix::process::{
    Pid, Signal, getpid, getppid, kill_process, set_parent_process_death_signal,
};
use serde_json::Value;
use std::ffi::OsString;
use std::fs::File;
use std::hash::RandomState;
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// A model of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Offered {
    pub(super) name: String,
    /// The tokens of its context, if it is in memory.
    pub(super) n_ctx: Option<u64>,
    others: Vec<String>,
    is_loaded: bool,
}

/// The models of the server at `url`. `None`: nothing listens there.
///
/// # Errors
/// What listens there is not a server of models, or refuses the key.
pub(super) fn models(url: &str, key: Option<&str>) -> anyhow::Result<Option<Vec<Offered>>> {
    let Some(answer) = get(url, "/v1/models", key)? else {
        return Ok(None);
    };
    let list = answer.body["data"].as_array();
    match (answer.status, list) {
        (200, Some(list)) => Ok(Some(list.iter().filter_map(offered).collect())),
        (401 | 403, _) => bail!("{url}: the server wants a key (--api-key)"),
        (status, _) => bail!("{url}: status {status} for /v1/models: not a server of models"),
    }
}

fn offered(model: &Value) -> Option<Offered> {
    let others = model["aliases"].as_array().into_iter().flatten();
    let n_ctx = [&model["max_model_len"], &model["meta"]["n_ctx"]];
    Some(Offered {
        name: model["id"].as_str()?.to_owned(),
        n_ctx: n_ctx.into_iter().find_map(Value::as_u64),
        others: others
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect(),
        is_loaded: model["status"]["value"] != "unloaded",
    })
}

/// The model called `name`; without a name the first in memory, or else the first.
pub(super) fn choose<'m>(all: &'m [Offered], name: Option<&str>) -> Option<&'m Offered> {
    match name {
        Some(name) => {
            // Servers show files without their folders.
            let file = name.rsplit('/').next().unwrap_or(name);
            let is_it = |model: &&Offered| {
                let mut names = model.others.iter().chain([&model.name]);
                names.any(|known| known == name || known == file)
            };
            all.iter().find(is_it)
        }
        None => all
            .iter()
            .find(|model| model.is_loaded)
            .or_else(|| all.first()),
    }
}

/// The flags of `sluice serve` for a model: a file, or a repository of the hub.
///
/// # Errors
/// It is neither.
pub(super) fn model_flags(model: &str) -> anyhow::Result<[OsString; 2]> {
    if PathBuf::from(model).is_file() {
        return Ok(["-m".into(), model.into()]);
    }
    let is_repo = model.split('/').count() == 2
        && !model.ends_with(".gguf")
        && !model.starts_with(['.', '/']);
    if is_repo {
        return Ok(["-hf".into(), model.into()]);
    }
    let message = format!(
        "-m {model}: neither a file, nor USER/NAME[:QUANT] on Hugging Face, nor a model of a server"
    );
    Err(UsageError(message).into())
}

/// `port`, or a free one if it is taken.
pub(super) fn free_port(port: u16) -> anyhow::Result<u16> {
    let bound =
        TcpListener::bind(("127.0.0.1", port)).or_else(|_| TcpListener::bind(("127.0.0.1", 0)));
    Ok(bound.context("no free port")?.local_addr()?.port())
}

/// A server that was started; it ends when this is dropped.
pub(super) struct Started {
    child: Child,
    pub(super) url: String,
    log: PathBuf,
}

impl Started {
    /// Starts `sluice serve` with these flags and this key. Its lines go to a file.
    ///
    /// # Errors
    /// The program or the file cannot be started or written.
    pub(super) fn new(port: u16, flags: &[OsString], key: Option<&str>) -> anyhow::Result<Self> {
        let log = std::env::temp_dir().join(log_name());
        // Of this user alone, and new: a link that others have put there would be written through.
        let mut options = File::options();
        let options = options.write(true).create_new(true).mode(0o600);
        let file = options.open(&log);
        let file = file.with_context(|| log.display().to_string())?;
        let mut command = Command::new(std::env::current_exe().context("this program's own path")?);
        command
            .args(flags)
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            // Ctrl-C is for the client.
            .process_group(0);
        // Not as an argument, which others on this machine can see.
        match key {
            Some(key) => command.env("LLAMA_API_KEY", key),
            None => command.env_remove("LLAMA_API_KEY"),
        };
        end_with_this_program(&mut command);
        let child = command.spawn().context("the server cannot be started")?;
        let url = format!("http://127.0.0.1:{port}");
        Ok(Self { child, url, log })
    }

    /// Waits until its model is loaded. False: Ctrl-C came before.
    ///
    /// # Errors
    /// It ended; the error has its last lines.
    pub(super) fn wait(&mut self) -> anyhow::Result<bool> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                let text = std::fs::read_to_string(&self.log).unwrap_or_default();
                let lines: Vec<_> = text.lines().collect();
                let last = lines[lines.len().saturating_sub(LINES)..].join("\n");
                return Err(anyhow!("the server ended ({status}):\n{last}"));
            }
            if signals::is_stopped() {
                return Ok(false);
            }
            let ready = get(&self.url, "/health", None).ok().flatten();
            if ready.is_some_and(|answer| answer.status == 200) {
                return Ok(true);
            }
            std::thread::park_timeout(Duration::from_millis(100));
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            // It may have ended.
            let _sent = kill_process(pid, signal);
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        self.signal(Signal::TERM);
        let begun = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if begun.elapsed() > PATIENCE {
                let _killed = self.child.kill();
                let _ended = self.child.wait();
                break;
            }
            std::thread::park_timeout(Duration::from_millis(20));
        }
        let _removed = std::fs::remove_file(&self.log);
    }
}

/// Has a child end when this thread does, also where nothing of this program runs any more: after SIGKILL, or out of memory.
fn end_with_this_program(command: &mut Command) {
    let own = getpid();
    let ask = move || {
        set_parent_process_death_signal(Some(Signal::TERM))?;
        // This program may have ended before that.
        match getppid() == Some(own) {
            true => Ok(()),
            false => Err(std::io::ErrorKind::BrokenPipe.into()),
        }
    };
    // SAFETY: between fork and exec it makes two system calls, and neither allocates nor locks.
    let _command = unsafe { command.pre_exec(ask) };
}

/// A name that other programs do not guess.
fn log_name() -> String {
    let random = RandomState::new().build_hasher().finish();
    format!("sluice-launch-{}-{random:016x}.log", std::process::id())
}

/// Time for a server's answers to end; they have no reader any more.
const PATIENCE: Duration = Duration::from_secs(3);
/// Lines of a log that are shown.
const LINES: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_model_is_found_by_any_of_its_names() {
        let list = json!([
            {"id": "small", "aliases": ["a.gguf"], "status": {"value": "unloaded"}},
            {"id": "large", "aliases": ["b.gguf"], "status": {"value": "loaded"}, "max_model_len": 4096},
            {"id": "theirs", "meta": {"n_ctx": 512}},
            {"name": "no id"},
        ]);
        let all: Vec<_> = list
            .as_array()
            .unwrap()
            .iter()
            .filter_map(offered)
            .collect();
        let chosen = |name| choose(&all, name).map(|model| (&*model.name, model.n_ctx));
        assert_eq!(chosen(None), Some(("large", Some(4096))));
        assert_eq!(chosen(Some("small")), Some(("small", None)));
        assert_eq!(chosen(Some("/models/a.gguf")), Some(("small", None)));
        assert_eq!(chosen(Some("theirs")), Some(("theirs", Some(512))));
        assert_eq!(chosen(Some("gpt-4")), None);
        assert_eq!(choose(&[], None), None);
    }

    #[test]
    fn a_model_is_a_file_or_a_repository() {
        let flags = |model: &str| model_flags(model).map(|[flag, _]| flag).ok();
        assert_eq!(flags("Cargo.toml"), Some("-m".into()));
        assert_eq!(flags("user/name:Q4_K_M"), Some("-hf".into()));
        for wrong in ["missing.gguf", "./a/b.gguf", "/a/b", "name"] {
            assert_eq!(flags(wrong), None, "{wrong}");
        }
    }
}
