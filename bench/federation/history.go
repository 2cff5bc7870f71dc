package federation

import (
	"bytes"
	"compress/flate"
	"context"
	"fmt"
	"io"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/bench/report"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// historyKey begins the store's keys of jobs in the history.
	historyKey = "/nusa/v1/history/"
	// historyOps is the number of records in one transaction.
	historyOps = 500
	// historyFormat is the first byte of a stored record.
	historyFormat = 1
	// pageJobs is the number of jobs on a page of a list. pages bounds the number of pages that
	// are read.
	pageJobs, pages = 1000, 200
)

// History holds the figures of the restarted server with jobs that have ended.
type History struct {
	Jobs int `json:"jobs"`
	// Memory is the memory of the restarted server after the lists.
	Memory
	// PageMS is the time for a page of a list.
	PageMS Pair `json:"page_ms"`
}

// fillHistory stores jobs that have ended. The running server does not know them: the restarted
// one does.
func (m *measurement) fillHistory(ctx context.Context) error {
	if m.o.History == 0 {
		return nil
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{m.server.etcd}, Context: ctx})
	if err != nil {
		return fmt.Errorf("store the history: %w", err)
	}
	defer c.Close()
	set := newJobSet(m.name+"-h", m.fleet.Names(), "")
	w, err := flate.NewWriter(io.Discard, flate.BestSpeed)
	if err != nil {
		return fmt.Errorf("compress a job: %w", err)
	}
	var ops []clientv3.Op
	for i := range m.o.History {
		key, value, err := historyRecord(set.spec(i), int64(i+1), w)
		if err != nil {
			return err
		}
		ops = append(ops, clientv3.OpPut(key, value))
		if len(ops) < historyOps && i+1 < m.o.History {
			continue
		}
		if _, err := c.Txn(ctx).Then(ops...).Commit(); err != nil {
			return fmt.Errorf("store the history: %w", err)
		}
		ops = ops[:0]
		m.o.progress("%d of %d jobs in the history", i+1, m.o.History)
	}
	return nil
}

// historyRecord returns the stored record of a batch job that is complete. It compresses with w.
func historyRecord(spec *nusav1.JobSpec, run int64, w *flate.Writer) (key, value string, err error) {
	spec.Type = nusav1.JobType_JOB_TYPE_BATCH
	job := &nusav1.Job{Spec: spec, Version: 1, Submitted: timestamppb.Now(), Run: run}
	status := &nusav1.JobStatus{State: nusav1.JobState_JOB_STATE_COMPLETE, Groups: map[string]*nusav1.GroupStatus{
		groupName: {Desired: 1, Counts: &nusav1.InstanceCounts{Complete: 1}},
	}}
	body, err := proto.Marshal(&nusav1.HistoryBody{
		Job: &nusav1.JobRecord{Job: job}, Result: &nusav1.ResultRecord{Version: 1, Run: run, Status: status},
	})
	if err != nil {
		return "", "", fmt.Errorf("encode a job: %w", err)
	}
	var packed bytes.Buffer
	w.Reset(&packed)
	_, err = w.Write(body)
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		return "", "", fmt.Errorf("compress a job: %w", err)
	}
	line, err := proto.Marshal(&nusav1.Job{
		Spec: &nusav1.JobSpec{Namespace: spec.GetNamespace(), Name: spec.GetName(), Type: spec.GetType()}, Version: 1, Revision: run,
		Submitted: job.GetSubmitted(), Run: run, Status: status,
	})
	if err != nil {
		return "", "", fmt.Errorf("encode a job: %w", err)
	}
	rec, err := proto.Marshal(&nusav1.HistoryRecord{Line: line, Ended: timestamppb.Now(), Body: packed.Bytes()})
	if err != nil {
		return "", "", fmt.Errorf("encode a job: %w", err)
	}
	return historyKey + spec.GetNamespace() + "/" + spec.GetName(), string(append([]byte{historyFormat}, rec...)), nil
}

// lists measures how long the restarted server takes for each page of a list of jobs.
func (m *measurement) lists(ctx context.Context) error {
	if m.o.History == 0 {
		return nil
	}
	out := &History{Jobs: m.o.History}
	var took []time.Duration
	token := ""
	for range pages {
		start := time.Now()
		page, err := m.load.Client(0).List(ctx, &nusav1.ListJobsRequest{Limit: pageJobs, PageToken: token})
		if err != nil {
			return fmt.Errorf("list the jobs: %w", err)
		}
		took = append(took, time.Since(start))
		token = page.GetNextPageToken()
		if token == "" {
			break
		}
	}
	q := report.QuantilesOf(took)
	out.PageMS = Pair{q.P50, q.P99}
	memory, err := m.memory()
	if err != nil {
		return err
	}
	out.Memory = *memory
	m.r.History = out
	return nil
}
