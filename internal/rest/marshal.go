package rest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// noURL is the address of an error within a stream, whose request the client knows.
var noURL = &url.URL{}

// codec is the marshaler of grpc-gateway for JSON, and for messages on lines of their own.
type codec struct{ runtime.JSONPb }

// Marshal implements runtime.Marshaler.
func (*codec) Marshal(v any) ([]byte, error) {
	m, failed, err := unwrap(v)
	switch {
	case err != nil:
		return nil, err
	case failed != nil:
		return failed.frame(&http.Request{URL: noURL}), nil
	}
	return marshal(m)
}

// ContentType implements runtime.Marshaler.
func (*codec) ContentType(any) string { return jsonType }

// StreamContentType implements runtime.StreamContentType.
func (*codec) StreamContentType(any) string { return linesType }

// NewDecoder implements runtime.Marshaler. readBody has checked the body.
func (c *codec) NewDecoder(r io.Reader) runtime.Decoder {
	return runtime.DecoderFunc(func(v any) error {
		data, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		if len(data) == 0 {
			return io.EOF
		}
		return c.Unmarshal(data, v)
	})
}

// events is the marshaler for server-sent events.
type events struct{ codec }

// Marshal implements runtime.Marshaler. An event of a stream that resumes has its token as its id.
func (*events) Marshal(v any) ([]byte, error) {
	m, failed, err := unwrap(v)
	switch {
	case err != nil:
		return nil, err
	case failed != nil:
		return event("error", "", failed.frame(&http.Request{URL: noURL})), nil
	}
	data, err := marshal(m)
	if err != nil {
		return nil, err
	}
	return event("", resumeToken(m), data), nil
}

// StreamContentType implements runtime.StreamContentType.
func (*events) StreamContentType(any) string { return eventsType }

// jobFile is the marshaler for a job as a job file in YAML.
type jobFile struct{ codec }

// Marshal implements runtime.Marshaler.
func (*jobFile) Marshal(v any) ([]byte, error) {
	m, ok := v.(*nusav1.Job)
	if !ok {
		return nil, fmt.Errorf("a %T is no job", v)
	}
	spec := m.GetSpec()
	if spec == nil {
		spec = &nusav1.JobSpec{}
	}
	return job.Export(spec, job.YAML)
}

// ContentType implements runtime.Marshaler.
func (*jobFile) ContentType(any) string { return yamlType }

// event is a server-sent event, without the empty line that ends it.
func event(kind, id string, data []byte) []byte {
	var out bytes.Buffer
	if kind != "" {
		fmt.Fprintf(&out, "event: %s\n", kind)
	}
	if id != "" {
		fmt.Fprintf(&out, "id: %s\n", id)
	}
	fmt.Fprintf(&out, "data: %s\n", data)
	return out.Bytes()
}

// resumeToken returns the token of a message by which its stream resumes, or "".
func resumeToken(m proto.Message) string {
	fd := m.ProtoReflect().Descriptor().Fields().ByName("token")
	if fd == nil || fd.Kind() != protoreflect.StringKind || fd.IsList() {
		return ""
	}
	return m.ProtoReflect().Get(fd).String()
}

// unwrap returns the message or the error that grpc-gateway has wrapped.
func unwrap(v any) (proto.Message, *problem, error) {
	switch v := v.(type) {
	case proto.Message:
		return v, nil, nil
	case map[string]any: // a message of a stream
		if m, ok := v["result"].(proto.Message); ok {
			return m, nil, nil
		}
	case map[string]proto.Message: // the error that ends a stream
		if s, ok := v["error"].(*spb.Status); ok {
			return nil, problemOf(status.ErrorProto(s)), nil
		}
	}
	return nil, nil, errors.New("a response of an unknown kind")
}
