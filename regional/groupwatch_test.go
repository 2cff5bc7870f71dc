package regional_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestWatchGroupsSendsAllThenChanges: a watch sends all groups that match. After that it
// sends every change of these groups until they are removed. It sends no other group.
func TestWatchGroupsSendsAllThenChanges(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		w.server(1)
		w.master(1)
		w.submit(1, spec("shop-old", 2)) // no node yet
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Hour)
		defer cancel()
		client := nusav1.NewJobsClient(w.conn(1))
		stream, err := client.WatchGroups(ctx, &nusav1.WatchGroupsRequest{Namespace: "default", NamePrefix: "shop-", Interval: durationpb.New(0)})
		if err != nil {
			t.Fatal(err)
		}
		latest, synced := map[string]*nusav1.GroupCounts{}, false
		until := func(what string, ok func() bool) {
			t.Helper()
			for !ok() {
				m, err := stream.Recv()
				if err != nil {
					t.Fatalf("not seen: %s: %v", what, err)
				}
				synced = m.GetSynced()
				for _, g := range m.GetGroups() {
					if g.GetGroup() != "web" || !g.GetRemoved() && g.GetJob().GetRegion() != regionName {
						t.Errorf("group %v", g)
					}
					latest[g.GetJob().GetName()] = g
				}
			}
		}
		until("all groups", func() bool { return synced })
		if g := latest["shop-old"]; len(latest) != 1 || g.GetDesired() != 2 || g.GetUnplaced() != 2 || g.GetCounts().GetPending() != 2 {
			t.Errorf("the first groups: %v", latest)
		}
		w.submit(1, spec("other", 1))
		w.submit(1, spec("shop-new", 3))
		w.agent("a", runs)
		until("all instances run", func() bool {
			return latest["shop-old"].GetCounts().GetRunning() == 2 && latest["shop-new"].GetCounts().GetRunning() == 3
		})
		if g := latest["shop-new"]; g.GetDesired() != 3 || g.GetUnplaced() != 0 {
			t.Errorf("placed: %v", g)
		}
		if _, err := client.Stop(ctx, &nusav1.StopJobRequest{Job: &nusav1.JobRef{Name: "shop-new"}, Purge: true}); err != nil {
			t.Fatal(err)
		}
		until("it has stopped", func() bool {
			g := latest["shop-new"]
			return g.GetDesired() == 0 && g.GetCounts().GetRunning() == 0 && g.GetCounts().GetStopped() == 3
		})
		// Ended allocations stay in the state for an hour.
		until("it is removed", func() bool { return latest["shop-new"].GetRemoved() })
		if len(latest) != 2 {
			t.Errorf("also seen: %v", latest)
		}
	})
}

func TestWatchesOfGroupsAreBounded(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		w.server(1)
		w.master(1)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		client := nusav1.NewJobsClient(w.conn(1))
		watch := func(interval time.Duration) error {
			stream, err := client.WatchGroups(ctx, &nusav1.WatchGroupsRequest{Interval: durationpb.New(interval)})
			if err != nil {
				return err
			}
			_, err = stream.Recv()
			return err
		}
		for _, interval := range []time.Duration{-1, time.Hour} {
			if err := watch(interval); status.Code(err) != codes.InvalidArgument {
				t.Errorf("interval %s: %v", interval, err)
			}
		}
		for range 64 {
			if err := watch(time.Second); err != nil {
				t.Fatal(err)
			}
		}
		if err := watch(time.Second); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("the 65th watch: %v", err)
		}
	})
}
