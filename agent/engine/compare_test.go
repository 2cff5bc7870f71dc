package engine

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/driver/mock"
	"github.com/nusa-scheduler/nusa/agent/ordertest"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// deaf is a driver whose Wait never returns, so the agent does not notice the ends of runs.
type deaf struct{ *mock.Driver }

func (deaf) Wait(ctx context.Context, _ driver.ID) (driver.Status, error) {
	<-ctx.Done()
	return driver.Status{}, ctx.Err()
}

// compared compares and returns the kinds and objects of the repairs.
func compared(t *testing.T, c *Comparer) (out []string) {
	t.Helper()
	c.Compare(t.Context())
	time.Sleep(clearGrace + time.Second)
	synctest.Wait()
	for _, r := range c.Take() {
		out = append(out, r.GetKind()+" "+r.GetObject())
	}
	return out
}

// plant starts a run behind the agent's back.
func plant(t *testing.T, drv driver.Driver, id driver.ID, config map[string]any) {
	t.Helper()
	if err := drv.Start(t.Context(), driver.Task{ID: id, Config: config}); err != nil {
		t.Fatal(err)
	}
}

// TestPlantedDifferences: runs that no record has are stopped, and a run that is recorded as up and
// is not gets its end. Healthy runs, and those that are being started or stopped, are not touched.
func TestPlantedDifferences(t *testing.T) {
	web := func(alloc string, run int) driver.ID { return driver.ID{Alloc: alloc, Task: "main", Run: run} }
	for _, c := range []struct {
		name   string
		config map[string]any
		plant  func(t *testing.T, l *life, drv *mock.Driver)
		want   []string
		left   []driver.ID // the runs that are running at the end
	}{
		{"healthy", nil, func(*testing.T, *life, *mock.Driver) {}, nil, []driver.ID{web("aaaa", 1)}},
		{"an unknown run", nil, func(t *testing.T, _ *life, drv *mock.Driver) { plant(t, drv, web("ffff", 3), nil) },
			[]string{"instance_unknown ffff/main/3"}, []driver.ID{web("aaaa", 1)}},
		{"a second run of a task", nil, func(t *testing.T, _ *life, drv *mock.Driver) { plant(t, drv, web("aaaa", 7), nil) },
			[]string{"instance_extra aaaa/main/7"}, []driver.ID{web("aaaa", 1)}},
		{"a second run that ends between the looks", nil, func(t *testing.T, _ *life, drv *mock.Driver) {
			plant(t, drv, web("aaaa", 7), map[string]any{"run_time": (lookAgain / 2).String()})
		}, nil, []driver.ID{web("aaaa", 1)}},
		{"an ended run", nil, func(t *testing.T, _ *life, drv *mock.Driver) {
			if err := drv.Exit(web("aaaa", 1), 1); err != nil {
				t.Error(err)
			}
		}, []string{"instance_gone aaaa/main/1"}, nil},
		{"a start that takes long", map[string]any{"start_delay": "1h"}, func(*testing.T, *life, *mock.Driver) {}, nil, nil},
		{"a stop that takes long", map[string]any{"stop_delay": "30m"}, func(_ *testing.T, l *life, _ *mock.Driver) {
			l.give(ordertest.New("aaaa", 2, "mock", map[string]any{"stop_delay": "30m"}, longStop, ordertest.Stop))
		}, nil, []driver.ID{web("aaaa", 1)}},
		{"the order comes between the looks", nil, func(t *testing.T, l *life, drv *mock.Driver) {
			plant(t, drv, web("bbbb", 1), nil)
			time.AfterFunc(lookAgain/2, func() { l.give(ordertest.New("bbbb", 2, "mock", nil)) })
		}, nil, []driver.ID{web("aaaa", 1), web("bbbb", 1)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				drv := mock.New(mock.Config{})
				l := live(t, t.TempDir(), deaf{drv}, always)
				defer func() { l.kill() }()
				l.give(ordertest.New("aaaa", 1, "mock", c.config, longStop))
				synctest.Wait()
				x := NewComparer(l.engine)
				c.plant(t, l, drv)
				synctest.Wait()
				if got := compared(t, x); !slices.Equal(got, c.want) {
					t.Errorf("repaired %q, want %q", got, c.want)
				}
				if got := drv.Running(); !slices.Equal(got, c.left) {
					t.Errorf("%v run, want %v", got, c.left)
				}
				if got := compared(t, x); len(got) > 0 {
					t.Errorf("the next comparison repairs %q", got)
				}
				if c.name == "an ended run" && l.ended("aaaa") == nil {
					t.Error("the end of the run was not recorded")
				}
			})
		})
	}
}

func longStop(_ *nusav1.AllocOrder, g *nusav1.Group) {
	g.Tasks["main"].KillTimeout = durationpb.New(time.Hour)
}

// TestComparesInEachInterval: an agent compares by itself. While it leaves, it does not.
func TestComparesInEachInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		drv := mock.New(mock.Config{})
		l := live(t, t.TempDir(), drv, always)
		defer func() { l.kill() }()
		synctest.Wait()
		x := NewComparer(l.engine)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- x.Run(ctx) }()
		plant(t, drv, driver.ID{Alloc: "ffff", Task: "main", Run: 1}, nil)
		time.Sleep(compareInterval - time.Second)
		synctest.Wait()
		if n := len(drv.Running()); n != 1 {
			t.Errorf("%d runs before the end of the interval", n)
		}
		time.Sleep(compareInterval / 5)
		synctest.Wait()
		if n := len(drv.Running()); n != 0 {
			t.Errorf("%d runs after the interval", n)
		}
		plant(t, drv, driver.ID{Alloc: "ffff", Task: "main", Run: 2}, nil)
		l.engine.Leave(t.Context())
		time.Sleep(2 * compareInterval)
		synctest.Wait()
		if got := fmt.Sprint(drv.Running()); got != "[ffff/main/2]" {
			t.Errorf("%s run after the agent began to leave", got)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
