package regional_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional"
)

func restored(dir string) regional.Restored {
	return regional.Restored{Region: regionName, DataDir: dir, Logger: slog.New(slog.DiscardHandler)}
}

// TestRestoredRegionBeginsAnIncarnation: a server continues from a copy of its directory.
// The copy lacks the latest job. The numbers in the new log do not repeat earlier ones.
func TestRestoredRegionBeginsAnIncarnation(t *testing.T) {
	defer goleak.VerifyNone(t, probing)
	dir, old := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "copy")
	submit := func(s started, name string) (revision int64) {
		retry(t, func(ctx context.Context) error {
			r, err := nusav1.NewJobsClient(s.conn).Submit(ctx, &nusav1.SubmitRequest{Spec: spec(name, 1)})
			revision = r.GetRevision()
			return err
		})
		return revision
	}
	first := config(dir)
	first.NodeLease = 200 * time.Millisecond
	s := startReal(t, first)
	submit(s, "kept")
	if _, err := regional.Restore(restored(dir)); !errors.Is(err, serve.ErrDirInUse) {
		t.Errorf("restore of a running server: %v", err)
	}
	s.stop()
	if err := os.CopyFS(old, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	s = startReal(t, first)
	lost := submit(s, "lost")
	s.stop()

	wrong := restored(old)
	wrong.Incarnation = 1
	if _, err := regional.Restore(wrong); !errors.Is(err, regional.ErrConfig) {
		t.Errorf("the same incarnation again: %v", err)
	}
	wrong = restored(old)
	wrong.Region = "other"
	if _, err := regional.Restore(wrong); !errors.Is(err, serve.ErrOtherRole) {
		t.Errorf("another region: %v", err)
	}
	if _, err := regional.Restore(restored(t.TempDir())); !errors.Is(err, regional.ErrConfig) {
		t.Errorf("an empty directory: %v", err)
	}
	for want := uint64(2); want <= 3; want++ { // restored twice, as after an interruption
		if n, err := regional.Restore(restored(old)); err != nil || n != want {
			t.Fatalf("incarnation %d, %v", n, err)
		}
	}

	cfg := first
	cfg.DataDir = old
	s = startReal(t, cfg)
	defer s.stop()
	if again := submit(s, "again"); again <= lost {
		t.Errorf("revision %d after %d of the lost log", again, lost)
	}
	alarms := func(ctx context.Context) ([]string, error) {
		info, err := nusav1.NewSystemClient(s.conn).Info(ctx, &nusav1.InfoRequest{})
		return info.GetAlarms(), err
	}
	if all, err := alarms(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("alarms %q, %v", all, err)
	}
	retry(t, func(ctx context.Context) error {
		r, err := nusav1.NewRegionsClient(s.conn).Get(ctx, &nusav1.GetRegionRequest{Name: regionName})
		if err == nil && (r.GetIncarnation() != 3 || r.GetRestoreId() == "" || len(r.GetServers()) != 1) {
			err = fmt.Errorf("the region: %v", r)
		}
		return err
	})
	jobs := nusav1.NewJobsClient(s.conn)
	for name, want := range map[string]codes.Code{"kept": codes.OK, "lost": codes.NotFound} {
		if _, err := jobs.Get(t.Context(), &nusav1.GetJobRequest{Job: &nusav1.JobRef{Name: name}}); status.Code(err) != want {
			t.Errorf("job %s: %v", name, err)
		}
	}
	retry(t, func(ctx context.Context) error {
		all, err := alarms(ctx)
		if err == nil && len(all) > 0 {
			err = fmt.Errorf("alarms %q", all)
		}
		return err
	})
}

// TestServersOfAFormerGroupDoNotJoin: a server was not there during the restore and has the
// log of the former group. It must not join the new group.
func TestServersOfAFormerGroupDoNotJoin(t *testing.T) {
	defer goleak.VerifyNone(t, probing)
	first, second := config(filepath.Join(t.TempDir(), "1")), config(filepath.Join(t.TempDir(), "2"))
	second.Name = "s2"
	first.BootstrapExpect, second.BootstrapExpect = 2, 2
	a := startReal(t, first)
	second.Join = []string{a.addrs.Gossip}
	b := startReal(t, second)
	servers := func(s started, want ...string) {
		t.Helper()
		retry(t, func(ctx context.Context) error {
			r, err := nusav1.NewRegionsClient(s.conn).Get(ctx, &nusav1.GetRegionRequest{Name: regionName})
			var got []string
			for _, x := range r.GetServers() {
				got = append(got, x.GetId())
			}
			slices.Sort(got)
			if err == nil && !slices.Equal(got, want) {
				err = fmt.Errorf("servers %q, want %q", got, want)
			}
			return err
		})
	}
	servers(a, "s1", "s2")
	a.stop()
	b.stop()
	if n, err := regional.Restore(restored(first.DataDir)); err != nil || n != 2 {
		t.Fatalf("incarnation %d, %v", n, err)
	}
	a = startReal(t, first)
	defer a.stop()
	third := config(filepath.Join(t.TempDir(), "3"))
	third.Name, third.Join = "s3", []string{a.addrs.Gossip}
	second.Join = third.Join
	b = startReal(t, second)
	defer b.stop()
	c := startReal(t, third)
	defer c.stop()
	state := func(ctx context.Context, s started, index uint64) (*nusav1.StateDigest, error) {
		return nusav1.NewSiblingsClient(s.conn).State(ctx, &nusav1.StateRequest{Index: index})
	}
	retry(t, func(ctx context.Context) error { // s3 was started last and is a member of the group
		r, err := nusav1.NewRegionsClient(a.conn).Get(ctx, &nusav1.GetRegionRequest{Name: regionName})
		if err != nil {
			return err
		}
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		want, err := state(short, a, r.GetAppliedIndex())
		if err != nil {
			return err
		}
		got, err := state(short, c, r.GetAppliedIndex())
		if err == nil && got.GetHash() != want.GetHash() {
			err = fmt.Errorf("s3 has another state: %v", got)
		}
		return err
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	r, err := nusav1.NewRegionsClient(a.conn).Get(ctx, &nusav1.GetRegionRequest{Name: regionName})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := state(ctx, b, r.GetAppliedIndex()); err == nil {
		t.Errorf("s2 has joined: %v", got)
	}
}
