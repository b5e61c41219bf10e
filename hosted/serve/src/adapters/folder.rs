//! A folder whose adapters come and go: published when they are there, replaced when they change, withdrawn when
//! they are gone.

use super::Adapters;
use super::entry::{Entry, Origin};
use core::hash::{Hash as _, Hasher as _};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::DefaultHasher;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

/// How often the folder is looked at.
const EVERY: Duration = Duration::from_secs(1);

/// What was seen at the last look: an adapter counts when it looks the same twice, so that none is read while it is
/// being written.
type Seen = BTreeMap<PathBuf, u64>;

impl Adapters {
    /// Follows the folder until the server ends. Its adapters are for model `model`.
    pub(crate) async fn watch(self: Arc<Self>, model: usize, is_model: impl Fn(&str) -> bool) {
        let Some(folder) = self.options.folder.clone() else {
            return;
        };
        let mut seen = Seen::new();
        let (mut is_told, mut left_out) = (false, BTreeSet::new());
        loop {
            let path = folder.clone();
            let found = tokio::task::spawn_blocking(move || look(&path)).await;
            match found {
                Ok(Ok(found)) => {
                    self.follow(model, &found, &seen);
                    left_out.retain(|path| found.contains_key(path));
                    self.welcome(model, (&found, &seen), &mut left_out, &is_model);
                    seen = found;
                    is_told = false;
                }
                Ok(Err(error)) if !is_told => {
                    (self.log)(&format!("--lora-dir {}: {error}", folder.display()));
                    is_told = true;
                }
                _ => {}
            }
            tokio::time::sleep(EVERY).await;
        }
    }

    /// Replaces what has changed, withdraws what is gone.
    fn follow(&self, model: usize, found: &Seen, before: &Seen) {
        for entry in self.all() {
            let Origin::Folder(stamp) = entry.origin else {
                continue;
            };
            let path = entry.parts.first().map(|(path, _)| path);
            let now = path.and_then(|path| Some((path, *found.get(path)?)));
            match now {
                None => {
                    self.remove(&entry);
                    (self.log)(&format!("adapter {:?} withdrawn", &*entry.name));
                }
                Some((path, now)) if now != stamp && before.get(path) == Some(&now) => {
                    let (id, parts) = (entry.id, entry.parts.clone());
                    let new = Entry::new(id, &entry.name, parts, model, Origin::Folder(now));
                    if self.replace(&entry, &Arc::new(new)) {
                        (self.log)(&format!("adapter {:?} replaced", &*entry.name));
                    }
                }
                Some(_) => {}
            }
        }
    }

    /// Publishes what is new, and tells once of what has a name that is taken.
    fn welcome(
        &self,
        model: usize,
        (found, before): (&Seen, &Seen),
        left_out: &mut BTreeSet<PathBuf>,
        is_model: &impl Fn(&str) -> bool,
    ) {
        let is_published = |path: &Path| {
            let all = self.all();
            let of_folder = |entry: &Arc<Entry>| matches!(entry.origin, Origin::Folder(_));
            let mut own = all.iter().filter(|entry| of_folder(entry));
            own.any(|entry| entry.parts.iter().any(|(own, _)| own == path))
        };
        for (path, stamp) in found {
            if before.get(path) != Some(stamp) || is_published(path) {
                continue;
            }
            let name = super::stem(path);
            let added = match is_model(&name) {
                true => Err(format!("a model is called {name:?}")),
                false => self.add(
                    &name,
                    vec![(path.clone(), 1.0)],
                    model,
                    Origin::Folder(*stamp),
                ),
            };
            match added {
                Ok(_) => {
                    left_out.remove(path);
                    (self.log)(&format!("adapter {name:?} published"));
                }
                Err(why) if left_out.insert(path.clone()) => {
                    (self.log)(&format!("{} is left out: {why}", path.display()));
                }
                Err(_) => {}
            }
        }
    }
}

/// The adapters in a folder, and how their files look.
fn look(folder: &Path) -> std::io::Result<Seen> {
    let mut found = Seen::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let is_file = path.is_file() && path.extension().is_some_and(|end| end == "gguf");
        let files: Vec<PathBuf> = if is_file {
            vec![path.clone()]
        } else {
            let parts = ["adapter_config.json", "adapter_model.safetensors"];
            parts.map(|name| path.join(name)).to_vec()
        };
        let looks: Option<Vec<_>> = files.iter().map(|path| looks(path)).collect();
        if let Some(looks) = looks {
            let mut hash = DefaultHasher::new();
            looks.hash(&mut hash);
            found.insert(path, hash.finish());
        }
    }
    Ok(found)
}

/// Length and time of a file that is there.
fn looks(path: &Path) -> Option<(u64, Option<SystemTime>)> {
    let about = path.metadata().ok().filter(std::fs::Metadata::is_file)?;
    Some((about.len(), about.modified().ok()))
}
