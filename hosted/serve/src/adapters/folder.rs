//! Watches a folder of adapters: publishes new ones, replaces changed ones and withdraws deleted ones.

use super::Adapters;
use super::entry::{Entry, Origin};
use super::options::AdapterPart;
use core::hash::{Hash as _, Hasher as _};
use core::time::Duration;
use sluice::adapter::adapters_at;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::DefaultHasher;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use tokio::sync::oneshot;

/// How often the folder is scanned.
const EVERY: Duration = Duration::from_secs(1);
/// A file that has not changed for this long counts as completely written.
const OLD: Duration = Duration::from_secs(10);

/// The state of the folder at one scan. An adapter counts once two scans agree, or when it is old enough, so that it is
/// never read while it is being written.
type Seen = BTreeMap<PathBuf, Looks>;

/// A hash over lengths and times of files, and whether all of them are older than [`OLD`].
#[derive(Clone, Copy)]
struct Looks {
    stamp: u64,
    is_old: bool,
}

/// The adapters at each path in the folder, with the hash of that scan; or the reason why they cannot be listed.
type Listed = BTreeMap<PathBuf, (u64, Result<Vec<PathBuf>, Unlisted>)>;

/// Why the adapters at a path cannot be listed.
struct Unlisted {
    why: String,
    /// Whether they may be listed later, although the files stay as they are.
    is_passing: bool,
}

impl Adapters {
    /// Watches the folder until the server ends. Its adapters are for model `model`. Signals `looked` after the first
    /// scan.
    pub(crate) async fn watch(
        self: Arc<Self>,
        model: usize,
        is_model: impl Fn(&str) -> bool,
        looked: oneshot::Sender<()>,
    ) {
        let Some(folder) = self.options.folder.clone() else {
            return;
        };
        let (mut listed, mut seen) = (Listed::new(), Seen::new());
        let (mut is_told, mut left_out) = (false, BTreeSet::<PathBuf>::new());
        let mut looked = Some(looked);
        loop {
            let (path, before) = (folder.clone(), core::mem::take(&mut listed));
            let last = core::mem::take(&mut seen);
            let look = move || {
                let found = look(&path)?;
                let listed = list(&found, &last, before);
                Ok::<_, std::io::Error>((found, listed))
            };
            match tokio::task::spawn_blocking(look).await {
                Ok(Ok((found, now))) => {
                    self.follow(model, &found, &now);
                    left_out.retain(|path: &PathBuf| place_of(path, &found).is_some());
                    self.welcome(model, &now, &mut left_out, &is_model);
                    (seen, listed) = (found, now);
                    is_told = false;
                }
                Ok(Err(error)) if !is_told => {
                    (self.log)(&format!("--lora-dir {}: {error}", folder.display()));
                    is_told = true;
                }
                _ => {}
            }
            // Without a receiver, the folder is only watched.
            let _told = looked.take().map(|looked| looked.send(()));
            tokio::time::sleep(EVERY).await;
        }
    }

    /// Replaces changed adapters and withdraws deleted ones.
    fn follow(&self, model: usize, found: &Seen, listed: &Listed) {
        for entry in self.all() {
            let (Origin::Folder(stamp), Some(AdapterPart { path, .. })) =
                (entry.origin, entry.parts.first())
            else {
                continue;
            };
            let place = place_of(path, found);
            let now = place.and_then(|place| listed.get(place));
            let is_in = |all: &Result<Vec<_>, _>| all.as_ref().is_ok_and(|all| all.contains(path));
            match now {
                // It exists, but is still being written.
                None if place.is_some() => {}
                // It cannot be read now, for example because too many files are open.
                Some((_, Err(unlisted))) if unlisted.is_passing => {}
                Some((now, all)) if is_in(all) => {
                    if *now == stamp {
                        continue;
                    }
                    let (id, parts) = (entry.id, entry.parts.clone());
                    let new = Entry::new(id, &entry.name, parts, model, Origin::Folder(*now));
                    if self.replace(&entry, &Arc::new(new)) {
                        (self.log)(&format!("adapter {:?} replaced", &*entry.name));
                    }
                }
                _ => {
                    self.remove(&entry);
                    (self.log)(&format!("adapter {:?} removed", &*entry.name));
                }
            }
        }
    }

    /// Publishes new adapters. Logs once per path that is not an adapter or whose name is taken.
    fn welcome(
        &self,
        model: usize,
        listed: &Listed,
        left_out: &mut BTreeSet<PathBuf>,
        is_model: &impl Fn(&str) -> bool,
    ) {
        let is_published = |path: &Path| {
            let all = self.all();
            let of_folder = |entry: &Arc<Entry>| matches!(entry.origin, Origin::Folder(_));
            let mut own = all.iter().filter(|entry| of_folder(entry));
            own.any(|entry| entry.parts.iter().any(|own| own.path == path))
        };
        let leave_out = |left_out: &mut BTreeSet<PathBuf>, path: &Path, why: &str| {
            if left_out.insert(path.to_owned()) {
                (self.log)(&format!("{} is ignored: {why}", path.display()));
            }
        };
        for (place, (stamp, adapters)) in listed {
            let adapters = match adapters {
                Ok(adapters) => adapters,
                Err(unlisted) => {
                    leave_out(left_out, place, &unlisted.why);
                    continue;
                }
            };
            for path in adapters.iter().filter(|path| !is_published(path)) {
                let name = name_of(path, place);
                let parts = vec![path.clone().into()];
                let added = match is_model(&name) {
                    true => Err(format!("{name:?} is the name of a model")),
                    false => self.add(&name, parts, model, Origin::Folder(*stamp)),
                };
                match added {
                    Ok(_) => {
                        // Later errors at this path are logged again.
                        left_out.remove(path);
                        left_out.remove(place);
                        (self.log)(&format!("adapter {name:?} added"));
                    }
                    Err(why) => leave_out(left_out, path, &why),
                }
            }
        }
    }
}

/// Lists the adapters at paths that have settled. Paths that have not changed since the last listing are not reread.
fn list(found: &Seen, last: &Seen, mut before: Listed) -> Listed {
    let is_whole = |path: &PathBuf, looks: &Looks| {
        let last = last.get(path).map(|last| last.stamp);
        looks.is_old || last == Some(looks.stamp)
    };
    let whole = found.iter().filter(|(path, looks)| is_whole(path, looks));
    let all = whole.map(|(path, looks)| {
        let stamp = looks.stamp;
        let is_passing =
            |all: &Result<_, Unlisted>| all.as_ref().is_err_and(|error| error.is_passing);
        let known = before.remove(path);
        let known = known.filter(|(then, all)| *then == stamp && !is_passing(all));
        let listed = known.unwrap_or_else(|| {
            let all = adapters_at(path).map_err(|error| Unlisted {
                why: error.to_string(),
                is_passing: error.is_passing(),
            });
            (stamp, all)
        });
        (path.clone(), listed)
    });
    all.collect()
}

/// The path in the folder that an adapter belongs to: its own, or, for one of several, the directory before `#`.
fn place_of<'f>(path: &Path, found: &'f Seen) -> Option<&'f Path> {
    let several = || Some(Path::new(path.to_str()?.rsplit_once('#')?.0));
    let place = found.get_key_value(path);
    let place = place.or_else(|| found.get_key_value(several()?));
    place.map(|(place, _)| place.as_path())
}

/// An adapter's name: its file or folder name, or the name it has in a directory of several.
fn name_of(path: &Path, place: &Path) -> String {
    let of_several = path.to_str().filter(|_| path != place);
    match of_several.and_then(|text| text.rsplit_once('#')) {
        Some((_, name)) => name.to_owned(),
        None => super::stem(path),
    }
}

/// The adapters in a folder, and the state of their files.
fn look(folder: &Path) -> std::io::Result<Seen> {
    let mut found = Seen::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        // A folder that is being written, or what a killed program left of it.
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let path = entry.path();
        let is_file = path.is_file() && path.extension().is_some_and(|end| end == "gguf");
        let of_folder = |names: &[&str; 2]| {
            let looks = names.iter().map(|name| looks(&path.join(name)));
            looks.collect::<Option<Vec<_>>>()
        };
        let looks = match is_file {
            true => looks(&path).map(|looks| vec![looks]),
            false => FOLDERS.iter().find_map(of_folder),
        };
        if let Some(looks) = looks {
            let mut hash = DefaultHasher::new();
            looks.hash(&mut hash);
            let is_old = |(_, time): &(u64, Option<SystemTime>)| {
                let age = time.and_then(|time| time.elapsed().ok());
                age.is_some_and(|age| age > OLD)
            };
            let (stamp, is_old) = (hash.finish(), looks.iter().all(is_old));
            found.insert(path, Looks { stamp, is_old });
        }
    }
    Ok(found)
}

/// Files of a PEFT folder and of an INFQ directory.
const FOLDERS: [[&str; 2]; 3] = [
    ["adapter_config.json", "adapter_model.safetensors"],
    ["adapter_config.json", "adapter_model.bin"],
    ["manifest.json", "adapters.bin"],
];

/// The length and modification time of a file, if it exists.
fn looks(path: &Path) -> Option<(u64, Option<SystemTime>)> {
    let about = path.metadata().ok().filter(std::fs::Metadata::is_file)?;
    Some((about.len(), about.modified().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::few_files::{in_child, take_all};
    use std::fs;

    #[test]
    fn an_adapter_that_cannot_be_read_now_is_listed_later() {
        let test = "adapters::folder::tests::an_adapter_that_cannot_be_read_now_is_listed_later";
        in_child(test, || {
            let name = format!("sluice-listed-{}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            fs::create_dir_all(&folder).unwrap();
            let fixture = concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/../../tests/fixtures/adapters/llama/one.gguf"
            );
            fs::copy(fixture, folder.join("x.gguf")).unwrap();
            fs::write(folder.join("y.gguf"), "text").unwrap();
            let hidden = folder.join(".z.partial-1");
            fs::create_dir(&hidden).unwrap();
            for name in FOLDERS[2] {
                fs::write(hidden.join(name), "").unwrap();
            }
            let found = look(&folder).unwrap();
            assert_eq!(found.len(), 2);
            let held = take_all();
            let now = list(&found, &found, Listed::new());
            let passing = |all: &Listed, name: &str| {
                let listed = &all[&folder.join(name)].1;
                listed.as_ref().is_err_and(|error| error.is_passing)
            };
            assert!(passing(&now, "x.gguf") && passing(&now, "y.gguf"));
            drop(held);
            let later = list(&found, &found, now);
            assert_eq!(
                later[&folder.join("x.gguf")].1.as_ref().ok().unwrap().len(),
                1
            );
            let wrong = &later[&folder.join("y.gguf")].1;
            assert!(wrong.is_err() && !passing(&later, "y.gguf"));
            fs::remove_dir_all(&folder).unwrap();
        });
    }
}
