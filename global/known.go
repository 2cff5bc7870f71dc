package global

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/replace"
	"github.com/nusa-scheduler/nusa/internal/serve"
	"github.com/nusa-scheduler/nusa/internal/wait"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// knownRevision is the greatest revision of the store that this server has seen. With a
// data directory it outlives the process. A store with a lower revision was restored from
// an old copy. Safe for concurrent use.
type knownRevision struct {
	path string // empty: no data directory

	mu       sync.Mutex
	revision int64
}

// openKnownRevision reads the stored revision. The revision is 0 if none is stored, or if dir is
// nil.
func openKnownRevision(dir *serve.DataDir) (*knownRevision, error) {
	k := &knownRevision{}
	if dir == nil {
		return k, nil
	}
	k.path = dir.Path("revision")
	text, err := os.ReadFile(k.path)
	if errors.Is(err, fs.ErrNotExist) {
		return k, nil
	}
	if err == nil {
		k.revision, err = strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	}
	if err != nil {
		return nil, fmt.Errorf("read the latest known revision: %w; remove %s if it is damaged", err, k.path)
	}
	return k, nil
}

// knownRegions are the regions that have connected, as far as this server has seen. With a data
// directory the names outlive the process. A store that was restored from an old
// copy may not have all of them. Safe for concurrent use.
type knownRegions struct {
	path string // empty: no data directory

	mu    sync.Mutex
	names map[string]bool
	// latest has the names that the latest call of note in the same term had.
	latest map[string]bool
}

// openKnownRegions reads the stored names. There are none if none are stored, or if dir is nil.
func openKnownRegions(dir *serve.DataDir) (*knownRegions, error) {
	k := &knownRegions{names: map[string]bool{}}
	if dir == nil {
		return k, nil
	}
	k.path = dir.Path("regions")
	text, err := os.ReadFile(k.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the known regions: %w", err)
	}
	for _, name := range strings.Fields(string(text)) {
		k.names[name] = true
	}
	return k, nil
}

// begin begins a term, and returns the names, sorted.
func (k *knownRegions) begin() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.latest = nil
	return slices.Sorted(maps.Keys(k.names))
}

// note stores the names of the regions that have connected. A name is forgotten only if an earlier
// note of the same term had it: an operator has removed the region. Otherwise the store may be an
// old copy that does not have the region yet.
func (k *knownRegions) note(names []string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	now, changed := map[string]bool{}, false
	for _, name := range names {
		now[name] = true
		changed = changed || !k.names[name]
		k.names[name] = true
	}
	for name := range k.latest {
		if !now[name] {
			changed = true
			delete(k.names, name)
		}
	}
	k.latest = now
	return k.store(changed)
}

// add stores further names. A standby cannot know which regions operators have removed.
func (k *knownRegions) add(names []string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	changed := false
	for _, name := range names {
		changed = changed || !k.names[name]
		k.names[name] = true
	}
	return k.store(changed)
}

// store writes the names into the data directory if they have changed. The lock is held.
func (k *knownRegions) store(changed bool) error {
	if !changed || k.path == "" {
		return nil
	}
	return replace.File(k.path, []byte(strings.Join(slices.Sorted(maps.Keys(k.names)), "\n")+"\n"))
}

// regionsEvery is the number of notes of a standby after which it reads the regions again.
const regionsEvery = 6

// noteKnown notes the revision and the regions of the store again and again while this server is a
// standby. After the store was restored from an old copy, this server may be the first one that is
// elected.
func (s *server) noteKnown(ctx context.Context) error {
	n := 0
	for range wait.Ticks(ctx, s.cfg.ReportInterval) {
		if s.active.Load() != nil {
			continue // the active server's term notes both
		}
		_, _, revision, err := s.store.Get(ctx, state.ClusterKey)
		if err == nil {
			err = s.known.note(revision)
		}
		if err == nil && n%regionsEvery == 0 {
			err = s.addRegions(ctx)
		}
		n++
		if err != nil {
			s.log.Debug("cannot note what the store has", "error", err)
		}
	}
	return ctx.Err()
}

// addRegions notes the regions of the store that have connected.
func (s *server) addRegions(ctx context.Context) error {
	var names []string
	_, err := s.store.List(ctx, state.RegionPrefix, func(kv store.KV) error {
		r := new(nusav1.Region)
		if err := state.Decode(kv, r); err != nil {
			return err
		}
		if r.GetClusterId() != "" {
			names = append(names, strings.TrimPrefix(kv.Key, state.RegionPrefix))
		}
		return nil
	})
	if err != nil {
		return err
	}
	return s.regions.add(names)
}

func (k *knownRevision) get() int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.revision
}

// note stores a revision, if it is greater than the one stored.
func (k *knownRevision) note(revision int64) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if revision <= k.revision {
		return nil
	}
	k.revision = revision
	if k.path == "" {
		return nil
	}
	return replace.File(k.path, []byte(strconv.FormatInt(revision, 10)+"\n"))
}
