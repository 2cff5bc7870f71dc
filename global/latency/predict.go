package latency

import (
	"context"
	"log/slog"
	"time"

	"github.com/nusa-scheduler/nusa/internal/wait"
	"github.com/nusa-scheduler/nusa/topology"
	"github.com/nusa-scheduler/nusa/topology/predict"
)

const (
	// checkReports is the interval between checks of the predictions. refitReports is the least
	// interval between fits. Both are in report intervals: ten seconds and a minute at the default
	// interval of five seconds.
	checkReports, refitReports = 2, 12
	// fitShare bounds the time spent on fits: one part in fitShare of one core.
	fitShare = 20
	// predictSeed is fixed, so that every server predicts the same from the same samples.
	predictSeed = 1
)

// Predictor keeps the predictions for pairs without a measurement up to date.
type Predictor struct {
	// View returns the present view.
	View func() *topology.View
	// Set stores new predictions.
	Set func(topology.Predictor)
	// ReportInterval is how often regions report.
	ReportInterval time.Duration
	Clock          func() time.Duration
	Log            *slog.Logger
}

// Run checks and fits until ctx ends. A fit for 1,000 regions takes seconds. So fits are rare, and
// run concurrently with everything else. Views use the result of the latest fit.
func (p Predictor) Run(ctx context.Context) error {
	var table *predict.Table
	var fitted, took time.Duration
	for range wait.Ticks(ctx, checkReports*p.ReportInterval) {
		began := p.Clock()
		if table != nil && table.Samples() > 0 && began-fitted < max(refitReports*p.ReportInterval, fitShare*took) {
			continue
		}
		view := p.View()
		if table != nil && !table.Outdated(view) {
			continue
		}
		table = predict.NewTable(view, predictSeed)
		fitted = p.Clock()
		took = fitted - began
		p.Set(table)
		p.Log.Debug("round trips are predicted", "regions", len(view.Names()), "doubts", len(table.Doubts()), "took", took)
	}
	return ctx.Err()
}
