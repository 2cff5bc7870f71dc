package supervise

import (
	"context"
	"time"
)

// Bounds of the pause between two reads.
const (
	leastPause = 2 * time.Millisecond
	mostPause  = 250 * time.Millisecond
)

// Pace makes the pauses between the reads of a state that reports no events, such as the
// files of a container. The pauses grow with the time since the first read. So the polling
// delays the caller by at most about 3 %, and a wait for a state that never comes costs
// four reads a second. The zero value is ready to use.
type Pace struct{ began, ended time.Time }

// pause returns the pause before the next read. If the caller did other work for a while,
// the pauses are short again.
func (p *Pace) pause(now time.Time) time.Duration {
	if now.Sub(p.ended) > mostPause {
		p.began = now
	}
	return min(max(leastPause, now.Sub(p.began)/32), mostPause)
}

// Wait waits until the next read is due. It returns the error of ctx if ctx ends earlier.
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

// After returns a channel that receives the time of the next read.
func (p *Pace) After() <-chan time.Time {
	now := time.Now()
	d := p.pause(now)
	p.ended = now.Add(d)
	return time.After(d)
}
