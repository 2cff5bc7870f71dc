package peers

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// clock is a clock that a test can set.
type clock struct{ now time.Duration }

func (c *clock) read() time.Duration { return c.now }

func peerList(names ...string) *nusav1.PeerRegions {
	out := &nusav1.PeerRegions{}
	for _, n := range names {
		out.Regions = append(out.Regions, &nusav1.PeerRegion{Name: n})
	}
	return out
}

// TestCopyOmitsPartsThatTheCallerHas: a caller with the same content gets only the ages.
func TestCopyOmitsPartsThatTheCallerHas(t *testing.T) {
	c := &clock{now: time.Minute}
	f := NewFederationCache(c.read)
	f.SetPeers(peerList("beta"))
	c.now += 10 * time.Second
	whole := f.Copy("")
	if len(whole.GetPeers().GetRegions()) != 1 || whole.GetPeersAge().AsDuration() != 10*time.Second || whole.GetMatrixAge() != nil {
		t.Errorf("first copy: %v", whole)
	}
	if again := f.Copy(whole.GetToken()); again.GetPeers() != nil || again.GetPeersAge().AsDuration() != 10*time.Second {
		t.Errorf("copy for a caller with the same content: %v", again)
	}
	f.SetPeers(peerList("beta", "gamma"))
	if changed := f.Copy(whole.GetToken()); len(changed.GetPeers().GetRegions()) != 2 {
		t.Errorf("copy after a change: %v", changed)
	}
}

// TestAdoptTakesOnlyNewerParts: of two copies the newer part counts. Equal content only
// makes a part younger.
func TestAdoptTakesOnlyNewerParts(t *testing.T) {
	c := &clock{now: time.Hour}
	master, follower := NewFederationCache(c.read), NewFederationCache(c.read)
	master.SetPeers(peerList("old"))
	c.now += time.Minute
	follower.SetPeers(peerList("new"))
	if err := follower.adopt(master.Copy("")); err != nil {
		t.Fatal(err)
	}
	if got := follower.Copy("").GetPeers(); !proto.Equal(got, peerList("new")) {
		t.Errorf("an older copy replaced a newer one: %v", got)
	}
	master.SetPeers(peerList("new"))
	c.now += time.Minute
	master.Connected()
	if err := follower.adopt(master.Copy(follower.Copy("").GetToken())); err != nil {
		t.Fatal(err)
	}
	if silence, known := follower.Silence(); !known || silence != 0 {
		t.Errorf("silence %v after the master confirmed the same content", silence)
	}
}

// TestCopyOfAnEarlierProcessIsOlder: the ages in a loaded file include the time since the
// file was written. A file that is too large is ignored.
func TestCopyOfAnEarlierProcessIsOlder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "federation")
	c := &clock{now: time.Hour}
	log := slog.New(slog.DiscardHandler)
	first := &Copier{Federation: NewFederationCache(c.read), Path: path, Log: log}
	first.Load() // there is no file yet
	first.Federation.SetPeers(peerList("beta"))
	c.now += time.Minute
	if err := first.save(true); err != nil {
		t.Fatal(err)
	}
	written := time.Now().Add(-time.Hour)
	if err := os.Chtimes(path, written, written); err != nil {
		t.Fatal(err)
	}
	second := &Copier{Federation: NewFederationCache(c.read), Path: path, Log: log}
	second.Load()
	if silence, known := second.Federation.Silence(); !known || silence < 61*time.Minute || silence > 62*time.Minute {
		t.Errorf("silence %v, known %v, want 61 minutes", silence, known)
	}
	if err := os.WriteFile(path, make([]byte, maxFile+1), 0o600); err != nil {
		t.Fatal(err)
	}
	third := &Copier{Federation: NewFederationCache(c.read), Path: path, Log: log}
	third.Load()
	if _, known := third.Federation.Silence(); known {
		t.Error("a file larger than the bound was loaded")
	}
}
