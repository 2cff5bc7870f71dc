package cloudevent

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// ContentType is the media type of an encoded event.
	ContentType = "application/cloudevents+json; charset=utf-8"
	// TypePrefix is put before the type of an event: the CloudEvents type is reverse-DNS style
	// text that must not clash with other sources.
	TypePrefix = "nusa."

	specVersion     = "1.0"
	dataContentType = "application/json"
)

// Envelope is a CloudEvents 1.0 event in JSON.
type Envelope struct {
	SpecVersion     string `json:"specversion"`
	ID              string `json:"id"`
	Source          string `json:"source"`
	Type            string `json:"type"`
	Subject         string `json:"subject,omitempty"`
	Time            string `json:"time,omitempty"`
	DataContentType string `json:"datacontenttype"`
	Data            Data   `json:"data"`
}

// Data is the payload of an Envelope.
type Data struct {
	Message   string `json:"message"`
	Namespace string `json:"namespace,omitempty"`
	Region    string `json:"region,omitempty"`
	// Number is the position of the event in its log. 0: the event is not durable.
	Number uint64 `json:"number"`
}

// ID returns the id of a durable event: LOG-NUMBER. It identifies the event for ever, so
// consumers use it to ignore repetitions.
func ID(e *nusav1.Event) string {
	return fmt.Sprintf("%s-%d", e.GetLog(), e.GetNumber())
}

// Source returns the CloudEvents source of a log: a URI reference.
func Source(log string) string { return "/nusa/logs/" + log }

// Of returns the envelope of a durable event.
func Of(e *nusav1.Event) Envelope { return OfID(ID(e), e) }

// OfID returns the envelope of an event with an id of the caller, for events without a number.
func OfID(id string, e *nusav1.Event) Envelope {
	out := Envelope{
		SpecVersion: specVersion, ID: id, Source: Source(e.GetLog()), Type: TypePrefix + e.GetType(), Subject: e.GetSubject(),
		DataContentType: dataContentType,
		Data:            Data{Message: e.GetMessage(), Namespace: e.GetNamespace(), Region: e.GetRegion(), Number: e.GetNumber()},
	}
	if e.GetTime() != nil {
		out.Time = e.GetTime().AsTime().Format(time.RFC3339Nano)
	}
	return out
}

// JSON returns the encoded envelope. Equal events have equal bytes.
func (e Envelope) JSON() []byte {
	e.Subject, e.Data.Message = valid(e.Subject), valid(e.Data.Message)
	out, err := json.Marshal(e)
	if err != nil { // a struct of texts and a number
		panic(fmt.Sprintf("encode a CloudEvent: %v", err))
	}
	return out
}

// valid replaces what is not UTF-8.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
