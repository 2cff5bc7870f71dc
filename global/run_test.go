package global

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nusa-scheduler/nusa/internal/network"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestSessionsLeasesAndPlacementsInAnHour: in an hour of virtual time a session continues, leases are granted
// in time, and a job that waits for capacity is placed as soon as there is room.
func TestSessionsLeasesAndPlacementsInAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFederation()
		start := time.Now()
		s := f.start(t, "g1", func(c *Config) {
			c.Clock = func() time.Duration { return time.Since(start) }
			c.ReportInterval, c.CheckpointInterval, c.ElectionTTL = 0, 0, 0
		})
		standby := f.start(t, "g2", func(c *Config) { c.Clock = func() time.Duration { return time.Since(start) } })
		r := s.joined("alpha", func(r *fakeRegion) { r.fits, r.bare = 0, true })
		s.submit(testJob("api", 1))
		for id := range uint64(360) {
			time.Sleep(10 * time.Second)
			r.send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Lease{Lease: &nusav1.LeaseRequest{Id: id + 1}}})
			r.mu.Lock()
			rep := r.report()
			r.mu.Unlock()
			r.send(rep)
		}
		synctest.Wait()
		r.mu.Lock()
		if len(r.grants) != 360 || r.grants[359].GetDuration().AsDuration() != 15*time.Second || r.err != nil || len(r.slots) != 0 {
			t.Errorf("%d grants, error %v, %d slots", len(r.grants), r.err, len(r.slots))
		}
		r.fits, r.bare = 1, false
		rep := r.report()
		r.mu.Unlock()
		before := time.Now()
		r.send(rep)
		r.waitSlot("default/api/web/0", accepted)
		if took := time.Since(before); took > 10*time.Millisecond {
			t.Errorf("placed %s after there was room, in virtual time", took)
		}
		// The active server loses the store. The successor waits no longer than the TTL.
		s.store.Cut(true)
		before = time.Now()
		waitActive(t, standby)
		if took := time.Since(before); took > 8*time.Second {
			t.Errorf("takeover took %s", took)
		}
		s.store.Cut(false)
		r.leave()
		standby.stop()
		s.stop()
	})
}

// TestRunRefuses: Run reports a configuration that cannot work before it changes
// anything.
func TestRunRefuses(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	other := t.TempDir()
	mem := newFederation().mem.Client()
	defer mem.Close()
	for _, c := range []struct {
		name string
		cfg  Config
		text string
	}{
		{"no directory", Config{GRPCAddr: "127.0.0.1:0", HTTPAddr: "-"}, "data directory"},
		{"address in use", Config{Store: mem, GRPCAddr: l.Addr().String(), HTTPAddr: "-"}, "--grpc-addr"},
		{"HTTP address in use", Config{Store: mem, GRPCAddr: "127.0.0.1:0", HTTPAddr: l.Addr().String()}, "--http-addr"},
		{"advertise", Config{Store: mem, Advertise: "nowhere"}, "advertised address"},
		{"negative", Config{Store: mem, Lease: -time.Second}, "negative"},
		{"a file in the way", Config{DataDir: other + "/x/y", GRPCAddr: "127.0.0.1:0", HTTPAddr: "-",
			Etcd: Etcd{ClientAddr: l.Addr().String(), PeerAddr: "127.0.0.1:0"}}, "etcd"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), testWait)
			defer cancel()
			err := Run(ctx, c.cfg)
			if err == nil || !strings.Contains(err.Error(), c.text) {
				t.Errorf("Run returned %v, want a mention of %q", err, c.text)
			}
		})
	}
}

func TestHTTP(t *testing.T) {
	f := newFederation()
	web := make(chan string, 1)
	s := f.start(t, "g1", func(c *Config) {
		c.HTTPAddr = "127.0.0.1:0"
		pipes, host := c.Net.Listen, network.Host().Listen
		c.Net.Listen = func(ctx context.Context, addr string) (net.Listener, error) {
			if strings.HasPrefix(addr, "127.") {
				return host(ctx, addr)
			}
			return pipes(ctx, addr)
		}
		ready := c.Ready
		c.Ready = func(a Addresses) { web <- a.HTTP; ready(a) }
	})
	s.joined("alpha")
	base := "http://" + <-web
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for path, want := range map[string]string{
		"/readyz":  "",
		"/livez":   "",
		"/metrics": `nusa_global_regions{connected="true"} 1`,
	} {
		resp, err := client.Get(base + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(body), want) {
			t.Errorf("%s: %s, %v", path, resp.Status, err)
		}
	}
}

// TestSilentRegion: a region that requests no lease for the length of a lease loses its session
// with a refusal. It gets leases again in the next session.
func TestSilentRegion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFederation()
		start := time.Now()
		s := f.start(t, "g1", func(c *Config) {
			c.Clock = func() time.Duration { return time.Since(start) }
			c.ReportInterval = 0
		})
		r := s.joined("alpha")
		time.Sleep(40 * time.Second)
		r.wait("end of the silent session", func() bool { return r.err != nil })
		r.mu.Lock()
		if r.refused == nil || r.refused.GetPermanent() {
			t.Errorf("the silent region got the refusal %v", r.refused)
		}
		r.mu.Unlock()
		s.waitRegion("alpha", nusav1.RegionState_REGION_STATE_DISCONNECTED)
		again := s.joined("alpha")
		again.wait("orders", func() bool { return again.fullSets == 1 }) // no lease before it acknowledges them
		again.send(&nusav1.RegionMessage{Kind: &nusav1.RegionMessage_Lease{Lease: &nusav1.LeaseRequest{Id: 7}}})
		again.wait("lease", func() bool { return len(again.grants) == 1 })
		again.leave()
		s.stop()
	})
}
