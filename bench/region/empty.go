package region

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nusa-scheduler/nusa/bench/load"
	"github.com/nusa-scheduler/nusa/bench/report"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// defaultEmpty is how long empty calls are measured, unless Options say otherwise.
const defaultEmpty = 2 * time.Second

// emptyCalls returns how many empty calls a second the callers reach. An empty call asks
// the server only for its description.
func (m *measurement) emptyCalls(ctx context.Context) (float64, error) {
	var calls atomic.Int64
	start := time.Now()
	g, ctx := errgroup.WithContext(ctx)
	for i := range m.o.Concurrency {
		client := nusav1.NewSystemClient(m.load.Conns[i%len(m.load.Conns)])
		g.Go(func() error {
			for time.Since(start) < m.o.emptyFor {
				if _, err := client.Info(ctx, &nusav1.InfoRequest{}); err != nil {
					return fmt.Errorf("empty call: %w", report.Cause(ctx, err))
				}
				calls.Add(1)
			}
			return nil
		})
	}
	err := g.Wait()
	return report.PerSecond(int(calls.Load()), time.Since(start)), err
}

// emptyPaced measures the latency of empty calls at the rate of the jobs. A latency counts
// from the time at which the call was due. The result is mostly the time that the machine
// needs to wake the processes at both ends.
func (m *measurement) emptyPaced(ctx context.Context) (report.Quantiles, error) {
	client := nusav1.NewSystemClient(m.load.Conns[0])
	all := make([]time.Duration, max(1, min(1000, int(m.o.Rate*m.o.emptyFor.Seconds()))))
	start := time.Now()
	for i := range all {
		due := start.Add(time.Duration(float64(i) / m.o.Rate * float64(time.Second)))
		if !load.SleepUntil(ctx, due) {
			return report.Quantiles{}, context.Cause(ctx)
		}
		if _, err := client.Info(ctx, &nusav1.InfoRequest{}); err != nil {
			return report.Quantiles{}, fmt.Errorf("empty call: %w", report.Cause(ctx, err))
		}
		all[i] = time.Since(due)
	}
	return report.QuantilesOf(all), nil
}
