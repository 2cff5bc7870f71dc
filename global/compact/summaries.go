package compact

import (
	"slices"
	"strings"
	"unique"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Summaries are the latest summaries of one job, by region. They stay encoded, without the names of
// the job. The zero value is empty.
type Summaries struct {
	list []summary // by region
}

type summary struct {
	at      unique.Handle[string]
	encoded []byte
}

func (s *Summaries) find(at string) (int, bool) {
	return slices.BinarySearchFunc(s.list, at, func(x summary, at string) int { return strings.Compare(x.at.Value(), at) })
}

// Put sets the summary of a region.
func (s *Summaries) Put(at string, sum *nusav1.JobSummary) { s.PutEncoded(at, Encode(sum)) }

// Encode returns an encoded summary without the names of the job.
func Encode(sum *nusav1.JobSummary) []byte {
	namespace, job := sum.GetNamespace(), sum.GetJob()
	sum.Namespace, sum.Job = "", ""
	encoded, _ := proto.Marshal(sum) // cannot fail: a region sent it
	sum.Namespace, sum.Job = namespace, job
	return encoded
}

// PutEncoded sets the summary of a region to one that Encode returned. Nobody may change it
// afterwards.
func (s *Summaries) PutEncoded(at string, encoded []byte) {
	if i, found := s.find(at); found {
		s.list[i].encoded = encoded
	} else {
		s.list = slices.Insert(s.list, i, summary{unique.Make(at), encoded})
	}
}

// Get returns the summary of a region without the names of the job, nil if there is none.
func (s *Summaries) Get(at string) *nusav1.JobSummary {
	i, found := s.find(at)
	if !found {
		return nil
	}
	return decode(&s.list[i])
}

// Encoded returns the encoded summary of a region without the names of the job, nil if there is
// none. Nobody may change it.
func (s *Summaries) Encoded(at string) []byte {
	i, found := s.find(at)
	if !found {
		return nil
	}
	return s.list[i].encoded
}

// The fields of nusav1.JobSummary that CutNames reads.
const (
	namespaceField protowire.Number = 1
	jobField       protowire.Number = 2
	localField     protowire.Number = 3
)

// CutNames divides an encoded summary into the names of the job and the rest, as AppendField has joined them. ok is
// false if it has another form, or is of a job of the region's own.
func CutNames(summary []byte) (namespace, job, rest []byte, ok bool) {
	cut := func(want protowire.Number) (value []byte) {
		number, kind, tag := protowire.ConsumeTag(rest)
		if tag < 0 || number != want || kind != protowire.BytesType {
			return nil
		}
		value, n := protowire.ConsumeBytes(rest[tag:])
		if n < 0 {
			return nil
		}
		rest = rest[tag+n:]
		return value
	}
	rest = summary
	namespace, job = cut(namespaceField), cut(jobField)
	if len(namespace) == 0 || len(job) == 0 {
		return nil, nil, nil, false
	}
	for b := rest; len(b) > 0; {
		number, _, n := protowire.ConsumeField(b)
		if n < 0 || number <= localField {
			return nil, nil, nil, false
		}
		b = b[n:]
	}
	return namespace, job, rest, true
}

// AppendField appends an encoded summary and the names of its job to b, as the field with a number
// of another message.
func AppendField(b []byte, number protowire.Number, namespace, job string, encoded []byte) []byte {
	size := protowire.SizeTag(namespaceField) + protowire.SizeBytes(len(namespace)) +
		protowire.SizeTag(jobField) + protowire.SizeBytes(len(job)) + len(encoded)
	b = protowire.AppendTag(b, number, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(size))
	b = protowire.AppendTag(b, namespaceField, protowire.BytesType)
	b = protowire.AppendString(b, namespace)
	b = protowire.AppendTag(b, jobField, protowire.BytesType)
	b = protowire.AppendString(b, job)
	return append(b, encoded...)
}

func decode(x *summary) *nusav1.JobSummary {
	out := &nusav1.JobSummary{}
	_ = proto.Unmarshal(x.encoded, out) // cannot fail: Encode has encoded it
	return out
}

// Delete removes the summary of a region.
func (s *Summaries) Delete(at string) {
	if i, found := s.find(at); found {
		s.list = slices.Delete(s.list, i, i+1)
	}
}

// Regions returns the names of the regions that have a summary, sorted.
func (s *Summaries) Regions() []string {
	out := make([]string, len(s.list))
	for i := range s.list {
		out[i] = s.list[i].at.Value()
	}
	return out
}

// Decoded returns the summaries by region, without the names of the job.
func (s *Summaries) Decoded() map[string]*nusav1.JobSummary {
	out := make(map[string]*nusav1.JobSummary, len(s.list))
	for i := range s.list {
		out[s.list[i].at.Value()] = decode(&s.list[i])
	}
	return out
}
