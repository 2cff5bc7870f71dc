package series

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
)

// deep returns a file whose trees have branch pages and which has free pages, and the walk
// over that file.
func deep(t *testing.T) ([]byte, *walk) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "deep.db")
	filled(t, path)
	db, err := bolt.Open(path, 0o600, &bolt.Options{NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(
		db.Update(func(tx *bolt.Tx) error {
			for id := range uint32(6000) { // series whose data has been removed
				key := []byte{byte(id >> 24), byte(id >> 16), byte(id >> 8), byte(id)}
				if err := tx.Bucket(bucketSeries).Put(key, fmt.Appendf(nil, "node\x00a-long-name-of-a-node-%04d", id)); err != nil {
					return err
				}
			}
			return nil
		}),
		db.Update(func(tx *bolt.Tx) error { return tx.Bucket(bucketMeta).Put([]byte("again"), nil) }),
		db.Close())
	if err != nil {
		t.Fatal(err)
	}
	if err := checkPages(path); err != nil {
		t.Fatalf("a good file: %v", err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	w := &walk{file: bytes.NewReader(data)}
	if err := w.run(uint64(len(data))); err != nil {
		t.Fatal(err)
	}
	return data, w
}

// branches returns the offsets in a file of the page numbers in branch pages.
func branches(data []byte, w *walk) (places []uint64) {
	for page := uint64(2); page < w.pages; page++ {
		at := page * w.pageSize
		if w.seen[page] && native.Uint64(data[at:]) == page && native.Uint16(data[at+8:]) == flagBranch {
			for i := range uint64(native.Uint16(data[at+10:])) {
				places = append(places, at+pageHeader+i*pageElement+8)
			}
		}
	}
	return places
}

// TestCircularPagesAreDetected: a file is set aside if its page numbers form a circle, or
// if its list of free pages names used pages. bbolt would never end with such a file.
func TestCircularPagesAreDetected(t *testing.T) {
	data, w := deep(t)
	places := branches(data, w)
	free := w.free*w.pageSize + pageHeader
	if len(places) < 10 || native.Uint16(data[free-6:]) == 0 {
		t.Fatalf("%d branches and %d free pages are too few", len(places), native.Uint16(data[free-6:]))
	}
	own := func(place uint64) uint64 { return place / w.pageSize } // the page that a place is in
	for name, change := range map[string]func(b []byte){
		"a page below itself":      func(b []byte) { native.PutUint64(b[places[0]:], own(places[0])) },
		"a page below another's":   func(b []byte) { native.PutUint64(b[places[1]:], native.Uint64(b[places[2]:])) },
		"the root below":           func(b []byte) { native.PutUint64(b[places[len(places)-1]:], w.root) },
		"a page that is not there": func(b []byte) { native.PutUint64(b[places[3]:], 1<<40) },
		"the meta page below":      func(b []byte) { native.PutUint64(b[places[3]:], 1) },
		"a used page free":         func(b []byte) { native.PutUint64(b[free:], own(places[0])) },
		"a page free twice":        func(b []byte) { native.PutUint64(b[free+8:], native.Uint64(b[free:])) },
		"endless free pages":       func(b []byte) { native.PutUint16(b[free-6:], 0xffff); native.PutUint64(b[free:], 1<<34) },
		"endless overflow":         func(b []byte) { native.PutUint32(b[own(places[0])*w.pageSize+12:], 1<<31) },
	} {
		t.Run(name, func(t *testing.T) {
			broken := bytes.Clone(data)
			change(broken)
			path := filepath.Join(t.TempDir(), "series.db")
			if err := os.WriteFile(path, broken, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := checkPages(path); !errors.Is(err, errDamaged) {
				t.Errorf("found: %v", err)
			}
			log, said := logged()
			s, err := open(path, testKinds, Limits{}, log, true)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			works(t, s, epoch)
			if s.Stats().SetAside != 1 || !strings.Contains(said.String(), "set aside") {
				t.Errorf("not said: %s", said)
			}
		})
	}
}

// TestStoreSurvivesStrayPageNumbers: with random page numbers in the file, the store opens,
// accepts samples and responds to queries.
func TestStoreSurvivesStrayPageNumbers(t *testing.T) {
	data, w := deep(t)
	places := branches(data, w)
	free := w.free*w.pageSize + pageHeader
	for i := range uint64(native.Uint16(data[free-6:])) {
		places = append(places, free+8*i)
	}
	for page := range w.pages { // the headers of all pages
		places = append(places, page*w.pageSize, page*w.pageSize+8)
	}
	rng := rand.New(rand.NewPCG(13, 14))
	path := filepath.Join(t.TempDir(), "series.db")
	aside := 0
	for range 150 {
		broken := bytes.Clone(data)
		for range 1 + rng.IntN(3) {
			native.PutUint64(broken[places[rng.IntN(len(places))]:], rng.Uint64N(w.pages+2))
		}
		if err := os.WriteFile(path, broken, 0o600); err != nil {
			t.Fatal(err)
		}
		s := openTest(t, path, Limits{})
		aside += int(s.Stats().SetAside)
		for i := range 15 {
			_ = s.Append(epoch.Add(4*time.Hour+time.Duration(i)*Base), []Sample{{"node", "new", []float64{1, 2}}})
			s.cycle()
		}
		_ = s.Close()
		_ = os.Remove(path)
		_ = os.Remove(path + ".damaged")
	}
	if aside < 75 {
		t.Errorf("only %d of 150 damaged files were detected", aside)
	}
}
