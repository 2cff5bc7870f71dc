package tasks

import (
	"hash/fnv"
	"maps"
	"slices"
	"strings"

	"github.com/nusa-scheduler/nusa/internal/taskpage"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// term is the hash of a value by which records are found. Records with an equal term by chance do no harm: a
// reader compares the record with the request.
type term [8]byte

func termOf(kind byte, parts ...string) (t term) {
	h := fnv.New64a()
	h.Write([]byte{kind})
	for _, p := range parts {
		h.Write([]byte(p))
		h.Write([]byte{0})
	}
	h.Sum(t[:0])
	return t
}

// stateTerm is the term of the latest state.
func stateTerm(s nusav1.AllocState) term { return termOf('s', s.String()) }

// keyOf returns the key of a record, whose id is a UUID.
func keyOf(rec *nusav1.TaskRecord) (taskpage.Key, bool) {
	id, ok := taskpage.ParseID(rec.GetId())
	return taskpage.Key{Placed: rec.GetPlaced().AsTime().UnixNano(), ID: id}, ok
}

// query is a request, with the name of its job as records have it.
type query struct {
	*nusav1.ListTasksRequest
	namespace, job string
	// allowed reports whether the caller may read the records of a namespace.
	allowed func(namespace string) bool
}

func newQuery(req *nusav1.ListTasksRequest, region string, allowed func(string) bool) query {
	q := query{ListTasksRequest: req, namespace: req.GetJob().GetNamespace(), job: req.GetJob().GetName(), allowed: allowed}
	if q.job != "" {
		if q.namespace == "" {
			q.namespace = job.DefaultNamespace
		}
		if req.GetJob().GetRegion() != "" && !strings.Contains(q.job, "@") {
			q.job += "@" + region
		}
	}
	return q
}

// terms returns the terms that every record of the answer has, besides its state.
func (q query) terms() (out []term) {
	switch {
	case q.job != "":
		out = append(out, termOf('j', q.namespace, q.job))
	case q.namespace != "":
		out = append(out, termOf('m', q.namespace))
	}
	if q.GetNode() != "" {
		out = append(out, termOf('n', q.GetNode()))
	}
	for _, k := range slices.Sorted(maps.Keys(q.GetLabels())) {
		out = append(out, termOf('l', k, q.GetLabels()[k]))
	}
	return out
}

// wants reports whether a record belongs to the answer. Only the range of keys says when it was placed.
func (q query) wants(rec *nusav1.TaskRecord) bool {
	for k, v := range q.GetLabels() {
		if have, ok := rec.GetLabels()[k]; !ok || have != v {
			return false
		}
	}
	return (q.namespace == "" || rec.GetNamespace() == q.namespace) &&
		(q.job == "" || rec.GetJob() == q.job) &&
		(q.GetGroup() == "" || rec.GetGroup() == q.GetGroup()) &&
		(q.Index == nil || rec.GetIndex() == q.GetIndex()) &&
		(q.GetNode() == "" || rec.GetNode() == q.GetNode() || rec.GetNodeId() == q.GetNode()) &&
		(len(q.GetStates()) == 0 || slices.Contains(q.GetStates(), rec.GetState())) &&
		q.allowed(rec.GetNamespace())
}
