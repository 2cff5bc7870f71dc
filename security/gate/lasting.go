package gate

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/security/authz"
	"github.com/nusa-scheduler/nusa/security/rights"
)

// renewInterval is how often the decisions of streams are checked. A stream ends at most this long
// after its right has ended at this server.
const renewInterval = 2 * time.Second

// lasting are the streams of operators and tokens that are decided again.
type lasting struct {
	mu      sync.Mutex
	streams map[*decidedStream]struct{}
	// renewing: a timer runs. There is one timer, however often streams end and begin.
	renewing bool
}

// add begins to decide a stream again. The returned function ends that.
func (g *Gate) add(d *decidedStream) (remove func()) {
	l := &g.lasting
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.streams == nil {
		l.streams = map[*decidedStream]struct{}{}
	}
	if !l.renewing {
		l.renewing = true
		time.AfterFunc(renewInterval, g.renew) // it ends with the last stream
	}
	l.streams[d] = struct{}{}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.streams, d)
		if len(l.streams) == 0 {
			l.streams = nil
		}
	}
}

// renew decides all streams again, and itself again while there are any.
func (g *Gate) renew() {
	l := &g.lasting
	l.mu.Lock()
	var all []*decidedStream
	for d := range l.streams {
		all = append(all, d)
	}
	l.mu.Unlock()
	if set := g.o.Rights(); set != nil {
		for _, d := range all {
			g.renewStream(d, set)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.renewing = len(l.streams) > 0
	if l.renewing {
		time.AfterFunc(renewInterval, g.renew)
	}
}

// renewStream ends a stream whose token or right has ended.
func (g *Gate) renewStream(d *decidedStream, set *rights.Set) {
	before, _ := d.call.Standing()
	if d.token == "" && before == set {
		return
	}
	who, _, err := g.principal(d.ctx, set, d.caller, d.token)
	if err != nil {
		d.end(status.Error(codes.Unauthenticated, err.Error()))
		return
	}
	if before == set {
		return
	}
	if why := d.call.Renew(set, who); why != "" {
		g.deny(d.ctx, who.Name, authz.Action{Verb: d.row.verb, Kind: d.row.kind}, why)
		d.end(status.Error(codes.PermissionDenied, "the right to this ended: "+why))
	}
}

// ended returns the error of a stream whose right has ended, or nil.
func (d *decidedStream) ended() error {
	if d.ctx.Err() == nil {
		return nil
	}
	if s, ok := status.FromError(context.Cause(d.ctx)); ok && s.Code() != codes.OK {
		return s.Err()
	}
	return nil
}
