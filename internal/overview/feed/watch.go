package feed

import (
	"context"
	"time"

	"github.com/nusa-scheduler/nusa/internal/overview"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// stream is one call of Watch.
type stream struct {
	hub   *Hub
	req   *request
	sight *sight
	send  func(*nusav1.OverviewUpdate) error
	// sent is the view that the reader has. nil: none.
	sent *overview.View
	jobs *selection
	feed *nodeFeed
	// topology and rights are those of the view that the reader has.
	topology bool
	rights   int
}

// Watch serves a stream until its context ends.
func (h *Hub) Watch(ctx context.Context, req *nusav1.WatchOverviewRequest, send func(*nusav1.OverviewUpdate) error) error {
	r, err := parse(req)
	if err != nil {
		return err
	}
	if err := h.checkNodes(r.nodesOf); err != nil {
		return err
	}
	s := &stream{hub: h, req: r, sight: newSight(ctx), send: send}
	if err := h.open(ctx, r); err != nil {
		return err
	}
	defer h.close(r)
	defer s.end()
	if r.nodesOf != "" && r.nodesOf != h.cfg.Region {
		s.feed = h.nodesOf(r.nodesOf)
	}
	tick := time.NewTicker(r.interval)
	defer tick.Stop()
	for {
		if err := s.update(ctx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-h.cfg.Context.Done():
			return h.cfg.Ended
		case <-tick.C:
		}
	}
}

// checkNodes checks the region of the request.
func (h *Hub) checkNodes(region string) error {
	switch {
	case region == "" || region == h.cfg.Region:
		return nil
	case h.cfg.Upstream == nil:
		return errNotOwn(h.cfg.Region, region)
	}
	return h.cfg.CheckRegion(region)
}

// end gives back what the stream has of the hub.
func (s *stream) end() {
	if s.feed != nil {
		s.hub.dropNodes(s.feed)
	}
	s.hub.lock <- struct{}{}
	defer s.hub.release()
	s.hub.jobs.drop(s.jobs)
}

// update sends what has changed. A reader that is slow gets only the latest state, because the
// next update begins when it has read this one.
func (s *stream) update(ctx context.Context) error {
	s.sight.renew()
	view, err := s.view(ctx)
	if err != nil {
		return err
	}
	was := s.sent
	if s.topology != s.sight.topology {
		was = nil // no message makes a reader forget the matrix alone
	}
	s.topology = s.sight.topology
	for _, m := range overview.Updates(was, view, messageSize) {
		update := toProto(m)
		if err := s.send(update); err != nil {
			return err
		}
	}
	s.sent = &view
	return nil
}

// view returns what the reader should see now.
func (s *stream) view(ctx context.Context) (out overview.View, err error) {
	h := s.hub
	if err := h.acquire(ctx); err != nil {
		return out, err
	}
	defer h.release()
	var was overview.View
	if s.sent != nil {
		was = *s.sent
	}
	own := s.req.nodesOf != "" && s.req.nodesOf == h.cfg.Region
	state, err := h.present(ctx, s.req.interval/2, s.req.edges, own)
	if err != nil {
		return out, err
	}
	mayNodes := s.req.nodesOf != "" && s.sight.may("node", "", s.req.nodesOf)
	errs := s.sight.errors(state.errors, was.Errors)
	switch {
	case s.req.nodesOf == "":
	case !mayNodes:
		errs = withError(errs, &nusav1.PartialError{Region: s.req.nodesOf, Message: "the right to read its nodes is missing"})
	case own:
		out.Nodes = state.nodes
	default:
		var missing *nusav1.PartialError
		out.Nodes, missing = s.feed.present()
		errs = withError(errs, missing)
	}
	if s.req.edges && !s.sight.topology {
		errs = withError(errs, &nusav1.PartialError{Message: "the right to read the topology is missing, so there are no round trips"})
	}
	out.Errors = reuse(errs, was.Errors)
	if s.req.onlyNodes {
		return out, nil
	}
	out.Head = state.brief
	if s.sight.topology {
		out.Head = state.head
	}
	out.Regions, out.Due = s.sight.regions(state.regions, was.Regions), s.sight.due(state.due, was.Due)
	if s.req.edges && s.sight.topology {
		out.Matrix = state.matrix
	}
	if s.rights != s.sight.changes { // which namespaces the selection has
		h.jobs.drop(s.jobs)
		s.jobs, s.rights = nil, s.sight.changes
	}
	out.Jobs, out.Counts, err = s.selected(ctx, was)
	return out, err
}

// selected returns the jobs that the reader selects. Until they are known it returns what the
// reader has.
func (s *stream) selected(ctx context.Context, was overview.View) (overview.Section, *overview.Entry, error) {
	h := s.hub
	if s.jobs == nil {
		f := s.req.filter
		if s.sight.call != nil {
			f.May = s.sight.job
		}
		s.jobs = h.jobs.add(f)
	}
	return h.jobs.present(ctx, s.jobs, s.req.interval/2, was.Jobs, was.Counts)
}

// withError returns a list of errors with one more. nil: the list itself.
func withError(errs overview.Section, e *nusav1.PartialError) overview.Section {
	if e == nil {
		return errs
	}
	out := append(overview.Section{errorEntry(e)}, errs...)
	out.Sort()
	return out
}

// reuse returns an earlier section that has the same texts, apart from their numbers.
func reuse(is, was overview.Section) overview.Section {
	if len(is) != len(was) {
		return is
	}
	for i := range is {
		if is[i].Key != was[i].Key || is[i].Exact != was[i].Exact {
			return is
		}
	}
	return was
}
