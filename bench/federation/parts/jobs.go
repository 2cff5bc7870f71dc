package parts

import (
	"context"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/idempotency"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/serve"
	"github.com/nusa-scheduler/nusa/internal/submits"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// job is a stored job.
type job struct {
	record []byte // as it is stored
	// running has the running instances of each region.
	running []instances
	// changed is closed when running changes. It is nil if nobody watches the job.
	changed chan struct{}
}

type instances struct {
	region string
	count  int32
}

// jobsAPI serves submits and watches.
type jobsAPI struct {
	nusav1.UnimplementedJobsServer
	p *parts
}

// SubmitEncoded implements submits.Jobs.
func (j *jobsAPI) SubmitEncoded(ctx context.Context, req *submits.Request) (*nusav1.SubmitResponse, error) {
	return j.p.submit(ctx, req)(ctx)
}

// SubmitManyEncoded implements submits.Jobs.
func (j *jobsAPI) SubmitManyEncoded(s grpc.BidiStreamingServer[submits.Request, nusav1.SubmitManyResponse]) error {
	return serve.SubmitMany(s, s.Context().Done(), context.Canceled, j.p.submit)
}

// submit queues the job of a request with a slot for each instance. It returns a function
// that waits for the response.
func (p *parts) submit(ctx context.Context, req *submits.Request) serve.FinishSubmit {
	done := make(chan int64, 1)
	err := p.begin(ctx, req, done)
	return func(ctx context.Context) (*nusav1.SubmitResponse, error) {
		if err != nil {
			return nil, err
		}
		select {
		case revision := <-done:
			return &nusav1.SubmitResponse{Version: firstVersion, Revision: revision, Changed: true}, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (p *parts) begin(ctx context.Context, req *submits.Request, done chan<- int64) error {
	f, err := req.Fields()
	if err != nil {
		return err
	}
	name, group, count := readSpec(f.Spec)
	regions := p.choose(count)
	if len(regions) == 0 {
		return status.Error(codes.Unavailable, "no region is connected")
	}
	record, spec, err := jobRecord(f.Spec)
	if err != nil {
		return err
	}
	key := namespace + "/" + name
	r := request{puts: make([]store.Op, 0, count+2), jobs: 1, changes: 1 + count}
	r.puts = append(r.puts, store.Put(jobPrefix+key, record))
	slots := make([]*nusav1.Slot, count)
	for i, to := range regions {
		slots[i] = newSlot(name, group, int32(i), to.region)
		value, err := encode(slots[i])
		if err != nil {
			return err
		}
		r.puts = append(r.puts, store.Put(slotPrefix+slotKey(key, group, int32(i)), value))
	}
	if f.Key != "" {
		r.puts = append(r.puts, store.PutTTL(idemPrefix+f.Key, make([]byte, idemBytes), idempotency.TTL))
	}
	r.stored = func(revision int64, out *outgoing) {
		p.mu.Lock()
		p.jobs[key] = &job{record: record}
		for i, slot := range slots {
			slot.Generation, slot.Run, slot.RunBegins = revision, revision, false
			p.offered[slotKey(key, group, int32(i))] = slot
		}
		p.mu.Unlock()
		done <- revision
		for i, slot := range slots {
			out.add(regions[i], &nusav1.SlotOrder{Slot: slot, Spec: spec, Revision: revision})
		}
	}
	return p.put(ctx, r)
}

// note notes how many instances of jobs run in a region.
func (p *parts) note(region string, summaries []*nusav1.JobSummary) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, sum := range summaries {
		j := p.jobs[sum.GetNamespace()+"/"+sum.GetJob()]
		if j == nil {
			continue
		}
		now := instances{region: region}
		for _, g := range sum.GetGroups() {
			now.count += g.GetRunning()
		}
		if at := slices.IndexFunc(j.running, func(i instances) bool { return i.region == region }); at >= 0 {
			j.running[at] = now
		} else {
			j.running = append(j.running, now)
		}
		if j.changed != nil {
			close(j.changed)
			j.changed = nil
		}
	}
}

// Watch implements nusav1.JobsServer. It sends the job now and after each change.
func (j *jobsAPI) Watch(req *nusav1.GetJobRequest, to grpc.ServerStreamingServer[nusav1.Job]) error {
	p := j.p
	p.mu.Lock()
	found := p.jobs[req.GetJob().GetNamespace()+"/"+req.GetJob().GetName()]
	p.mu.Unlock()
	if found == nil {
		return status.Errorf(codes.NotFound, "job %s does not exist", req.GetJob().GetName())
	}
	rec := &nusav1.JobRecord{}
	if err := proto.Unmarshal(found.record[1:], rec); err != nil {
		return err
	}
	for {
		p.mu.Lock()
		if found.changed == nil {
			found.changed = make(chan struct{})
		}
		changed, running := found.changed, int32(0)
		for _, r := range found.running {
			running += r.count
		}
		p.mu.Unlock()
		if err := to.Send(withStatus(rec.GetJob(), running)); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-to.Context().Done():
			return to.Context().Err()
		}
	}
}

// withStatus adds a status to a job with one group.
func withStatus(of *nusav1.Job, running int32) *nusav1.Job {
	st := &nusav1.JobStatus{State: nusav1.JobState_JOB_STATE_PENDING, Groups: map[string]*nusav1.GroupStatus{}}
	for name, g := range of.GetSpec().GetGroups() {
		if running == g.GetCount() {
			st.State = nusav1.JobState_JOB_STATE_RUNNING
		}
		st.Groups[name] = &nusav1.GroupStatus{
			Desired: g.GetCount(), Counts: &nusav1.InstanceCounts{Running: running, Pending: g.GetCount() - running},
		}
	}
	return &nusav1.Job{Spec: of.GetSpec(), Version: of.GetVersion(), Submitted: of.GetSubmitted(), Status: st}
}
