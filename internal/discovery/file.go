package discovery

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/catalog"
	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/internal/replace"
	"github.com/nusa-scheduler/nusa/internal/wait"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// saveEvery is how often a changed copy is written.
	saveEvery = time.Minute
	// maxFile bounds the file, in bytes. MaxBytes of instances need less.
	maxFile = 3 * MaxBytes
)

// copied returns the content of the store for a file.
func copied(s *Store) *nusav1.ServiceCopy {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := &nusav1.ServiceCopy{}
	if s.known {
		out.Known = rosterMessage(&s.roster, s.clock())
	}
	for _, name := range slices.Sorted(maps.Keys(s.regions)) {
		set := s.regions[name]
		r := &nusav1.RegionServices{Region: name, Position: positionToProto(set.outbox.Position()), Age: durationpb.New(s.age(name))}
		for _, key := range slices.Sorted(slices.Values(set.outbox.Keys())) {
			i, _ := set.outbox.Get(key)
			r.Instances = append(r.Instances, instanceToProto(i))
		}
		out.Regions = append(out.Regions, r)
	}
	return out
}

// Load fills an empty store from the file that an earlier process wrote, for the region own. A file
// that does not exist is no error. After an error the store is empty.
func Load(s *Store, path, own string) error {
	err := load(s, path, own)
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		for name := range s.regions {
			s.drop(name)
		}
		s.roster, s.known = Roster{}, false
	}
	return err
}

func load(s *Store, path, own string) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Size() > maxFile {
		return fmt.Errorf("%s has %d bytes, more than %d", path, info.Size(), maxFile)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	m := &nusav1.ServiceCopy{}
	if err := proto.Unmarshal(raw, m); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	since, now := max(0, time.Since(info.ModTime())), s.clock()
	roster := RosterFrom(m.GetKnown(), own, now-since)
	s.SetRoster(roster)
	for _, r := range m.GetRegions() {
		items := make([]link.Item[*catalog.Instance], 0, len(r.GetInstances()))
		for _, w := range r.GetInstances() {
			i := instanceFromProto(w)
			if err := i.Check(); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			items = append(items, link.Item[*catalog.Instance]{Key: i.Key(), Value: i})
		}
		s.mu.Lock()
		if err := s.replace(r.GetRegion(), items, positionFromProto(r.GetPosition())); err != nil {
			s.mu.Unlock()
			return fmt.Errorf("%s: %w", path, err)
		}
		set := s.regions[r.GetRegion()]
		set.loaded, set.at = true, now-since-max(0, r.GetAge().AsDuration())
		s.mu.Unlock()
	}
	return nil
}

// write writes the store to a file.
func write(s *Store, path string) error {
	raw, err := proto.Marshal(copied(s))
	if err != nil {
		return err
	}
	return replace.File(path, raw)
}

// SaveEach writes the store to a file after changes, at most once in saveEvery, and once more when ctx
// ends. An empty path writes nothing.
func SaveEach(ctx context.Context, s *Store, path string, log *slog.Logger) error {
	if path == "" {
		<-ctx.Done()
		return nil
	}
	changed := s.changed.C()
	for ctx.Err() == nil {
		if wait.For(ctx, saveEvery) {
			select {
			case <-changed:
			case <-ctx.Done():
			}
		}
		changed = s.changed.C() // before the copy is made, so that no later change is missed
		if err := write(s, path); err != nil {
			log.Warn("the copy of the services is not saved", "path", path, "error", err)
		}
	}
	return nil
}
