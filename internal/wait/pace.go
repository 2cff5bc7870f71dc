package wait

import (
	"context"
	"time"

	"golang.org/x/time/rate"
)

// Pace spaces what is done again and again: a few times at once after a quiet time, and
// then once in each interval.
type Pace struct{ limit *rate.Limiter }

// NewPace returns a Pace that allows burst times at once, and one more after each interval.
func NewPace(interval time.Duration, burst int) *Pace {
	return &Pace{rate.NewLimiter(rate.Every(interval), burst)}
}

// Wait waits until the next time is allowed. It returns false when ctx ends first.
func (p *Pace) Wait(ctx context.Context) bool {
	due := p.limit.Reserve().Delay()
	if due <= 0 {
		return ctx.Err() == nil
	}
	return For(ctx, due)
}

// Take takes the next time if it is allowed now. Otherwise it returns when it will be.
func (p *Pace) Take(now time.Time) (due time.Time, allowed bool) {
	r := p.limit.ReserveN(now, 1)
	if due := r.DelayFrom(now); due > 0 {
		r.CancelAt(now)
		return now.Add(due), false
	}
	return now, true
}
