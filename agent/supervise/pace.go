package supervise

import (
	"context"
	"time"
)

// Bounds of a pause between two looks.
const (
	leastPause = 2 * time.Millisecond
	mostPause  = 250 * time.Millisecond
)

// Pace spaces looks at what nobody tells the agent of, such as the files of a
// container: the longer it takes the longer the pauses, so that no more than
// about 3 % is added to the time that it takes, and one that never comes costs
// four looks a second. The zero value is at its beginning.
type Pace struct{ began, ended time.Time }

// pause before the next look. Who was busy otherwise for a while begins anew.
func (p *Pace) pause(now time.Time) time.Duration {
	if now.Sub(p.ended) > mostPause {
		p.began = now
	}
	return min(max(leastPause, now.Sub(p.began)/32), mostPause)
}

// Wait until it is time for the next look, or ctx has ended.
func (p *Pace) Wait(ctx context.Context) error {
	t := time.NewTimer(p.pause(time.Now()))
	defer t.Stop()
	defer func() { p.ended = time.Now() }()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// After is a channel that gets the time of the next look.
func (p *Pace) After() <-chan time.Time {
	now := time.Now()
	d := p.pause(now)
	p.ended = now.Add(d)
	return time.After(d)
}
