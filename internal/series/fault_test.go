package series

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
)

// filled returns the path of a closed file with three hours of 40 series.
func filled(t *testing.T, path string) time.Time {
	t.Helper()
	s := openTest(t, path, Limits{})
	now := epoch
	for i := range 3 * 720 {
		var samples []Sample
		for k := range 40 {
			samples = append(samples, Sample{"node", fmt.Sprint(k), []float64{float64(i), float64(i * k)}})
		}
		if err := s.Append(now, samples); err != nil {
			t.Fatal(err)
		}
		s.cycle()
		now = now.Add(Base)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return now
}

// works checks that the store accepts samples and responds to queries.
func works(t *testing.T, s *Store, now time.Time) {
	t.Helper()
	for i := range 30 {
		appendOne(t, s, now.Add(time.Duration(i)*Base), "new", 1, 2)
		s.cycle()
	}
	got, err := s.Query("node", "new", now, now.Add(time.Hour), Base)
	if err != nil || len(got.Points[0]) == 0 || got.Points[0][0].Mean != 1 {
		t.Errorf("%v, %v", got, err)
	}
	if st := s.Stats(); st.Failing != nil {
		t.Errorf("%+v", st)
	}
}

// TestDamagedFilesAreSetAside: the store opens with any content of the file, and sets an
// unreadable file aside.
func TestDamagedFilesAreSetAside(t *testing.T) {
	dir := t.TempDir()
	good := filepath.Join(dir, "good.db")
	end := filled(t, good)
	data, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	cases := map[string][]byte{
		"garbage":       []byte("this is no database"),
		"more garbage":  bytes.Repeat([]byte("nonsense"), 10_000),
		"zeros":         make([]byte, len(data)),
		"half":          data[:len(data)/2],
		"a page":        data[:4096],
		"two pages":     data[:8192],
		"no metas":      append(make([]byte, 8192), data[8192:]...),
		"only metas":    append(bytes.Clone(data[:8192]), make([]byte, len(data)-8192)...),
		"random pages":  nil,
		"other format":  nil,
		"other program": nil,
	}
	rng := rand.New(rand.NewPCG(7, 8))
	random := bytes.Clone(data)
	for i := 8192; i < len(random); i++ {
		random[i] = byte(rng.Uint32())
	}
	cases["random pages"] = random
	for name, change := range map[string]func(tx *bolt.Tx) error{
		"other format":  func(tx *bolt.Tx) error { return tx.Bucket(bucketMeta).Put(keyFormat, []byte("2")) },
		"other program": func(tx *bolt.Tx) error { return tx.DeleteBucket(bucketData) },
	} {
		path := filepath.Join(dir, "changed.db")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		db, err := bolt.Open(path, 0o600, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(db.Update(change), db.Close()); err != nil {
			t.Fatal(err)
		}
		if cases[name], err = os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range cases {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "series.db")
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
			log, said := logged()
			s, err := open(path, testKinds, Limits{}, log, true)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			works(t, s, end)
			aside, err := os.ReadFile(path + ".damaged")
			if err != nil || !bytes.Equal(aside, content) {
				t.Errorf("the damaged file is not kept as it was: %v", err)
			}
			if s.Stats().SetAside != 1 || !strings.Contains(said.String(), "set aside") {
				t.Errorf("not said: %s", said)
			}
		})
	}
}

// TestDamagedSegmentsAreGaps: a damaged place in the file leaves a gap, or the file is set
// aside. A query never returns a value that was not measured, and the process never ends.
func TestDamagedSegmentsAreGaps(t *testing.T) {
	dir := t.TempDir()
	good := filepath.Join(dir, "good.db")
	end := filled(t, good)
	data, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(9, 10))
	path := filepath.Join(dir, "series.db")
	aside := 0
	for range 100 {
		broken := bytes.Clone(data)
		// A run of wrong bytes, as after a bad sector or a misdirected write.
		at := rng.IntN(len(data) - 512)
		for i := range 1 + rng.IntN(512) {
			broken[at+i] ^= byte(rng.Uint32())
		}
		if err := os.WriteFile(path, broken, 0o600); err != nil {
			t.Fatal(err)
		}
		s := openTest(t, path, Limits{})
		aside += int(s.Stats().SetAside)
		for _, key := range s.Keys("node", "") {
			got, err := s.Query("node", key, end.Add(-time.Hour), end, Base)
			if err != nil {
				if !errors.Is(err, errDamaged) {
					t.Fatal(err)
				}
				continue
			}
			for i, p := range got.Points[0] {
				slot := slotAt(got.Start) + int64(i) - slotAt(epoch)
				if p.Count > 0 && p.Mean != float64(slot) {
					t.Fatalf("%s at %d is %v", key, slot, p)
				}
			}
		}
		for i := range 40 {
			_ = s.Append(end.Add(time.Duration(i)*Base), []Sample{{"node", "new", []float64{1, 2}}})
			s.cycle()
		}
		_ = s.Close()
		_ = os.Remove(path)
		_ = os.Remove(path + ".damaged")
	}
	t.Logf("%d of 100 files set aside at opening", aside)
}

// TestFileCutWhileOpenIsReplaced: a file that is truncated while it is open is replaced.
func TestFileCutWhileOpenIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "series.db")
	end := filled(t, path)
	log, said := logged()
	s, err := open(path, testKinds, Limits{}, log, true)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := os.Truncate(path, 8192); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Query("node", "1", end.Add(-time.Hour), end, 0); !errors.Is(err, errDamaged) {
		t.Errorf("reading gave %v", err)
	}
	for i := range 30 {
		appendOne(t, s, end.Add(time.Duration(i)*Base), "new", 1, 2)
		s.cycle()
	}
	if got := s.Stats().SetAside; got != 1 {
		t.Fatalf("%d files set aside: %s", got, said)
	}
	works(t, s, end.Add(time.Hour))
}

func TestImpossiblePathsAreErrors(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, filepath.Join(dir, "file", "series.db")} {
		if s, err := open(path, testKinds, Limits{}, nil, true); err == nil {
			s.Close()
			t.Errorf("%s opens", path)
		}
	}
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("the folder was set aside: %v", err)
	}
}

// TestFileNeverExceedsItsBound: if far more data is written than fits, the oldest data of
// the coarsest level is removed. The last hour stays complete.
func TestFileNeverExceedsItsBound(t *testing.T) {
	path := filepath.Join(t.TempDir(), "series.db")
	const bound = 4 << 20
	s := openTest(t, path, Limits{Bytes: bound})
	rng := rand.New(rand.NewPCG(11, 12))
	now, largest := epoch, int64(0)
	const minutes = 30 * 60
	for i := range minutes {
		var samples []Sample
		for k := range 250 {
			samples = append(samples, Sample{"node", fmt.Sprint(k), []float64{rng.Float64(), rng.ExpFloat64()}})
		}
		for range 12 {
			if err := s.Append(now, samples); err != nil {
				t.Fatal(err)
			}
			now = now.Add(Base)
			if i%8 != 0 && i < minutes-120 { // not every tick: the test would take a minute
				now = now.Add(11 * Base)
				break
			}
		}
		s.cycle()
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		largest = max(largest, info.Size())
	}
	st := s.Stats()
	if largest > bound || st.FileBytes > bound {
		t.Errorf("the file reached %d bytes, the bound is %d", largest, int64(bound))
	}
	if st.Evicted == 0 || st.LostMinutes > 0 || st.Failing != nil || st.SetAside > 0 {
		t.Errorf("%+v", st)
	}
	got, err := s.Query("node", "7", now.Add(-time.Hour), now, Base)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range got.Points[0] {
		if p.Count == 0 && i > 0 && i < len(got.Points[0])-13 {
			t.Fatalf("the last hour has a gap at %d of %d", i, len(got.Points[0]))
		}
	}
	// A lower bound shrinks the file at the next Open.
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	big := filepath.Join(t.TempDir(), "big.db")
	b := openTest(t, big, Limits{})
	for i := range 500 {
		var samples []Sample
		for k := range 2000 {
			samples = append(samples, Sample{"node", fmt.Sprint(k), []float64{rng.Float64(), rng.ExpFloat64()}})
		}
		if err := b.Append(epoch.Add(time.Duration(i)*Base), samples); err != nil {
			t.Fatal(err)
		}
		b.cycle()
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if info, _ := os.Stat(big); info.Size() <= bound {
		t.Fatalf("%d bytes are too few to shrink", info.Size())
	}
	b = openTest(t, big, Limits{Bytes: bound})
	defer b.Close()
	if info, _ := os.Stat(big); info.Size() > bound {
		t.Errorf("%d bytes after shrinking to %d", info.Size(), int64(bound))
	}
	works(t, b, epoch.Add(500*Base))
	if b.Stats().SetAside > 0 {
		t.Error("shrinking set the file aside")
	}
}

// TestFullDisk runs on a file system of 3 MiB, where the test may mount one.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("series", dir, "tmpfs", 0, "size=3m"); err != nil {
		t.Skipf("cannot mount a small file system: %v", err)
	}
	defer syscall.Unmount(dir, syscall.MNT_DETACH)
	path := filepath.Join(dir, "series.db")
	log, said := logged()
	s, err := open(path, testKinds, Limits{}, log, true)
	if err != nil {
		t.Fatal(err)
	}
	now := epoch
	rng := rand.New(rand.NewPCG(13, 14))
	tick := func() {
		var samples []Sample
		for k := range 400 {
			samples = append(samples, Sample{"node", fmt.Sprint(k), []float64{rng.Float64(), rng.ExpFloat64()}})
		}
		if err := s.Append(now, samples); err != nil {
			t.Fatal(err)
		}
		s.cycle()
		now = now.Add(Base)
	}
	// A write that failed can succeed later, in pages that became free meanwhile. In the
	// end every write fails.
	for i := 0; s.Stats().LostMinutes == 0; i++ {
		if tick(); i > 10_000 {
			t.Fatal("the disk never fills up")
		}
		if err := s.Stats().Failing; err != nil && !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
		if n := len(s.waiting); n > maxClosed {
			t.Fatalf("%d minutes wait", n)
		}
	}
	full := now
	if st := s.Stats(); st.SetAside > 0 {
		t.Errorf("%+v", st)
	}
	if !strings.Contains(said.String(), "could not be written") {
		t.Errorf("not said: %s", said)
	}
	// The written values are in the file, and the newest ones in memory.
	got, err := s.Query("node", "7", full.Add(-10*time.Minute), now, Base)
	if err != nil || got.Points[0][0].Count == 0 || got.Points[0][len(got.Points[0])-1].Count == 0 {
		t.Errorf("%v %v", got, err)
	}
	if err := syscall.Mount("series", dir, "tmpfs", syscall.MS_REMOUNT, "size=30m"); err != nil {
		t.Fatal(err)
	}
	for range 24 {
		tick()
	}
	if st := s.Stats(); st.Failing != nil || !strings.Contains(said.String(), "written again") {
		t.Errorf("with space again: %+v", st)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s, err = open(path, testKinds, Limits{}, nil, true); err != nil || s.Stats().SetAside > 0 {
		t.Fatal(err, s.Stats())
	}
	s.Close()
}

// TestClockJumpsCostNoHistory: one wrong reading of the clock removes no history. A
// lasting change of the clock is accepted.
func TestClockJumpsCostNoHistory(t *testing.T) {
	for _, jump := range []time.Duration{10 * 365 * 24 * time.Hour, -10 * 365 * 24 * time.Hour} {
		path := filepath.Join(t.TempDir(), "series.db")
		end := filled(t, path)
		s := openTest(t, path, Limits{})
		run := func(now time.Time, n int) time.Time {
			for range n {
				appendOne(t, s, now, "1", 5, 5)
				s.cycle()
				now = now.Add(Base)
			}
			return now
		}
		count := func(now time.Time) (n int) {
			got, err := s.Query("node", "1", epoch, now, time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range got.Points[0] {
				n += p.Count
			}
			return n
		}
		run(end.Add(jump), 100)
		back := run(end.Add(time.Minute), 100)
		if got := count(back); got != 3*720+100 {
			t.Errorf("%s and back: %d values are left of %d", jump, got, 3*720+100)
		}
		// The minutes at wrong times are removed after the clock was steady for an hour.
		back = run(back, 2*steadyFor)
		if keys := keysOutside(t, s, back); keys > 0 {
			t.Errorf("%s: %d segments of another time are left", jump, keys)
		}
		if st := s.Stats(); st.SetAside > 0 || st.LostMinutes > 0 || st.Failing != nil {
			t.Errorf("%+v", st)
		}
		s.Close()
	}
}

// keysOutside counts the segments that are more than a month before or after now.
func keysOutside(t *testing.T, s *Store, now time.Time) (n int) {
	t.Helper()
	err := s.file.view(func(tx *bolt.Tx) error {
		for _, bucket := range [][]byte{bucketData, bucketStale} {
			err := tx.Bucket(bucket).ForEach(func(b, _ []byte) error {
				k, _ := parseSegmentKey(b)
				if d := k.start - slotAt(now); d > 31*17_280 || d < -32*17_280 {
					n++
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestOldDamagedFilesAreRemoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "series.db")
	if err := os.WriteFile(path, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := openTest(t, path, Limits{})
	defer s.Close()
	dropAside(path, time.Now().Add(asideFor-time.Hour))
	if _, err := os.Stat(path + ".damaged"); err != nil {
		t.Fatal(err)
	}
	dropAside(path, time.Now().Add(asideFor+time.Hour))
	if _, err := os.Stat(path + ".damaged"); err == nil {
		t.Error("it is still there")
	}
}
