package wait

import (
	"context"
	"time"

	"golang.org/x/time/rate"
)

// Pace limits the rate of an action. After a quiet time it allows the action a few times
// at once, and then once in each interval.
type Pace struct{ limit *rate.Limiter }

// NewPace returns a Pace that allows the action burst times at once, and once more after
// each interval.
func NewPace(interval time.Duration, burst int) *Pace {
	return &Pace{rate.NewLimiter(rate.Every(interval), burst)}
}

// Wait waits until the action is allowed. It returns false if ctx ends first.
func (p *Pace) Wait(ctx context.Context) bool {
	due := p.limit.Reserve().Delay()
	if due <= 0 {
		return ctx.Err() == nil
	}
	return For(ctx, due)
}

// Take reports whether the action is allowed now, and then counts the action. Otherwise it
// returns the time at which the action is allowed.
func (p *Pace) Take(now time.Time) (due time.Time, allowed bool) {
	r := p.limit.ReserveN(now, 1)
	if due := r.DelayFrom(now); due > 0 {
		r.CancelAt(now)
		return now.Add(due), false
	}
	return now, true
}
