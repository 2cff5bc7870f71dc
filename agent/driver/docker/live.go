package docker

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/nusa-scheduler/nusa/agent/driver"
)

// noLimit is the value for unlimited memory in an update, where 0 would mean no change.
const noLimit = 1 << 62

// Stats implements driver.Driver. The engine reports the peak only with cgroups v1. That
// peak includes the page cache.
func (d *Driver) Stats(ctx context.Context, id driver.ID) (driver.Stats, error) {
	rec, err := d.running(ctx, id)
	if err != nil {
		return driver.Stats{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	res, err := d.cli.ContainerStats(ctx, rec.Container, client.ContainerStatsOptions{})
	if err != nil {
		return driver.Stats{}, d.address.wrap(err)
	}
	defer res.Body.Close()
	var s container.StatsResponse
	if err := json.NewDecoder(res.Body).Decode(&s); err != nil {
		return driver.Stats{}, d.address.wrap(err)
	}
	if s.Read.IsZero() || s.PidsStats.Current == 0 && s.MemoryStats.Usage == 0 {
		return driver.Stats{}, fmt.Errorf("run %s: %w", id, driver.ErrNotRunning)
	}
	cache, ok := s.MemoryStats.Stats["total_inactive_file"] // v1
	if !ok {
		cache = s.MemoryStats.Stats["inactive_file"]
	}
	out := driver.Stats{
		CPU:             time.Duration(s.CPUStats.CPUUsage.TotalUsage),
		MemoryBytes:     int64(s.MemoryStats.Usage - min(cache, s.MemoryStats.Usage)),
		MemoryPeakBytes: -1, Processes: int(s.PidsStats.Current),
	}
	if s.MemoryStats.MaxUsage > 0 {
		out.MemoryPeakBytes = int64(s.MemoryStats.MaxUsage)
	}
	return out, nil
}

// Update implements driver.Driver. A CPU share stays a share, and a hard CPU limit stays a
// hard limit.
func (d *Driver) Update(ctx context.Context, id driver.ID, r driver.Resources) error {
	rec, err := d.running(ctx, id)
	if err != nil {
		return err
	}
	got, err := d.cli.ContainerInspect(ctx, rec.Container, client.ContainerInspectOptions{})
	if err != nil {
		return d.address.wrap(err)
	}
	hard := got.Container.HostConfig.CPUQuota > 0
	want := resources(r, hard)
	if r.MemoryBytes == 0 {
		want.Memory, want.MemorySwap = noLimit, noLimit
	}
	if hard && r.CPUMilli == 0 {
		want.CPUQuota = -1
	}
	_, err = d.cli.ContainerUpdate(ctx, rec.Container, client.ContainerUpdateOptions{Resources: &want})
	switch {
	case cerrdefs.IsConflict(err):
		return fmt.Errorf("run %s: %w", id, driver.ErrNotRunning)
	case err != nil:
		return fmt.Errorf("%s: %w", faultyField(err.Error()), d.address.wrap(err))
	}
	_, err = d.records.change(id, func(rec *record) { rec.MemoryBytes = r.MemoryBytes })
	return err
}

// Signal implements driver.Driver.
func (d *Driver) Signal(ctx context.Context, id driver.ID, signal int) error {
	rec, err := d.running(ctx, id)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	_, err = d.cli.ContainerKill(ctx, rec.Container, client.ContainerKillOptions{Signal: strconv.Itoa(signal)})
	switch {
	case cerrdefs.IsConflict(err):
		return fmt.Errorf("run %s: %w", id, driver.ErrNotRunning)
	case err != nil:
		return d.address.wrap(err)
	}
	return nil
}
