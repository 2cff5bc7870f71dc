package global

import (
	"context"
	"time"

	"github.com/nusa-scheduler/nusa/topology/predict"
)

const (
	// predictEvery reports is how often it is looked whether the predictions are
	// outdated, and refitEvery how far apart fits are at least: ten seconds and a
	// minute with the usual five.
	predictEvery, refitEvery = 2, 12
	// fitShare bounds the time spent on fits: a twentieth of a core.
	fitShare = 20
	// predictSeed: every server predicts the same of the same.
	predictSeed = 1
)

// predictLoop keeps the predictions of what nobody measured up to date. A fit
// of 1,000 regions takes seconds, so it is rare and holds up nobody: views use
// the latest.
func (a *active) predictLoop(ctx context.Context) error {
	tick := time.NewTicker(predictEvery * a.cfg.ReportInterval)
	defer tick.Stop()
	var table *predict.Table
	var fitted, took time.Duration
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		began := a.cfg.Clock()
		if table != nil && table.Samples() > 0 && began-fitted < max(refitEvery*a.cfg.ReportInterval, fitShare*took) {
			continue
		}
		a.st.mu.Lock()
		view := a.st.topologyView()
		a.st.mu.Unlock()
		if table != nil && !table.Outdated(view) {
			continue
		}
		table = predict.NewTable(view, predictSeed)
		fitted = a.cfg.Clock()
		took = fitted - began
		a.st.predict(table)
		a.wakePlacer()
		a.log.Debug("predicted what nobody measured", "regions", len(view.Names()), "doubts", len(table.Doubts()), "took", took)
	}
}
