use super::{KvCache, KvConfig, KvError, PAGE_TOKENS, RUN_PAGES};
use crate::kernels::{KvLayout, KvType};
use crate::memory::{ALIGN, MemoryError};
extern crate std;
use std::vec;

const CONFIG: KvConfig = KvConfig {
    layout: KvLayout {
        type_k: KvType::F16,
        type_v: KvType::F16,
        head_dim_k: 3,
        head_dim_v: 5,
    },
    n_layer: 2,
    n_head_kv: 1,
    n_pages: 4,
    n_seq: 3,
};

/// Memory of exactly as many bytes as a plan says, less `less`, full of what reads as NaN.
fn with_memory<R>(config: &KvConfig, less: usize, act: impl FnOnce(&mut [u8]) -> R) -> R {
    let bytes = config.plan().unwrap().bytes() - less;
    let mut memory = vec![0xff; bytes + ALIGN];
    let start = memory.as_ptr().align_offset(ALIGN);
    act(&mut memory[start..start + bytes])
}

#[test]
fn a_plan_is_exactly_what_a_cache_takes() {
    for ty in KvType::ALL {
        for n_pages in [1, 4, 17] {
            let layout = KvLayout {
                type_k: ty,
                type_v: ty,
                ..CONFIG.layout
            };
            let config = KvConfig {
                layout,
                n_pages,
                ..CONFIG
            };
            with_memory(&config, 0, |memory| {
                let cache = KvCache::new(config, memory).unwrap();
                assert_eq!(cache.free_pages(), n_pages);
            });
            let small = MemoryError::TooSmall { missing_bytes: 64 };
            let error = with_memory(&config, 64, |memory| KvCache::new(config, memory).map(drop));
            assert_eq!(error, Err(small));
        }
    }
}

#[test]
fn blocks_of_a_head_in_neighbouring_pages_lie_side_by_side() {
    for n_pages in [1, RUN_PAGES - 1, RUN_PAGES, 2 * RUN_PAGES + 1] {
        let config = KvConfig { n_pages, ..CONFIG };
        let n_blocks = config.n_layer * config.n_head_kv;
        let mut is_taken = vec![false; n_pages * n_blocks];
        for block in 0..n_blocks {
            for page in 0..n_pages {
                let index = config.block_index(page, block);
                assert!(!core::mem::replace(&mut is_taken[index], true));
                if page % RUN_PAGES > 0 {
                    assert_eq!(index, config.block_index(page - 1, block) + 1);
                }
            }
        }
    }
}

#[test]
fn pages_are_taken_again_in_the_order_that_they_lie_in() {
    with_memory(&CONFIG, 0, |memory| {
        let mut cache = KvCache::new(CONFIG, memory).unwrap();
        let pages = |cache: &KvCache<'_>| {
            let view = cache.view();
            [0, 1, 2].map(|index| view.pointer(0, index, 0, 0))
        };
        cache.reserve(0, 3 * PAGE_TOKENS).unwrap();
        let first = pages(&cache);
        assert!(first.is_sorted());
        cache.release_unused(0, 3 * PAGE_TOKENS);
        cache.reserve(0, 3 * PAGE_TOKENS).unwrap();
        cache.commit(0, 3 * PAGE_TOKENS);
        assert_eq!(pages(&cache), first);
        cache.truncate(0, 0).unwrap();
        cache.reserve(0, 3 * PAGE_TOKENS).unwrap();
        assert_eq!(pages(&cache), first);
    });
}

/// A failed step may take and give back; a forked page is copied once.
#[test]
fn reserved_tokens_count_once_they_are_committed() {
    with_memory(&CONFIG, 0, |memory| {
        let mut cache = KvCache::new(CONFIG, memory).unwrap();
        cache.reserve(0, 65).unwrap();
        assert_eq!((cache.len(0), cache.free_pages()), (0, 2));
        cache.release_unused(0, 65);
        assert_eq!((cache.len(0), cache.free_pages()), (0, 4));
        cache.reserve(0, PAGE_TOKENS).unwrap();
        cache.commit(0, PAGE_TOKENS);
        assert_eq!((cache.len(0), cache.free_pages()), (64, 3));
        // The next token starts a page; the full one needs no copy.
        cache.fork(0, 1).unwrap();
        cache.reserve(1, 1).unwrap();
        assert_eq!(cache.free_pages(), 2);
        cache.commit(1, 1);
        // The partly filled page is shared by two now, and copied by the first to write.
        cache.fork(1, 2).unwrap();
        cache.reserve(2, 1).unwrap();
        assert_eq!(cache.free_pages(), 1);
        cache.release_unused(2, 1);
        cache.reserve(1, 1).unwrap();
        assert_eq!(cache.free_pages(), 1);
        let full = KvError::Full { needed: 2, free: 1 };
        assert_eq!(cache.reserve(0, 65), Err(full));
        for sequence in 0..3 {
            cache.clear(sequence).unwrap();
        }
        assert_eq!(cache.free_pages(), 4);
    });
}
