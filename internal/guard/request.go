package guard

import "strings"

// preface begins each connection of HTTP/2.
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

const (
	// maxBefore bounds the bytes before the end of the first headers of HTTP/1, and before the first
	// request of HTTP/2. There a client sends its settings, a window and answers to pings.
	maxBefore = 64 << 10
	// headersFrame is the type of the frame that begins a request of HTTP/2.
	headersFrame = 1
	frameHeader  = 9
)

// progress is how far a connection is with its first request.
type progress int

const (
	waiting progress = iota
	// requested: the first request was seen.
	requested
	// senseless: what was sent is not the beginning of a request.
	senseless
)

// protocol is what a connection speaks.
type protocol int

const (
	undecided protocol = iota
	speaksHTTP1
	speaksHTTP2
)

// request follows the bytes of a connection until the first request.
type request struct {
	speaks protocol
	// seen counts the bytes, and the bytes that a frame announces.
	seen int
	// text has the bytes that may be a part of the preface, or of the header of a frame.
	text []byte
	// line is true at the beginning of a line of HTTP/1.
	line bool
	// skip is the number of bytes of a frame that are still to come.
	skip int
}

// add adds the next bytes of the connection.
func (r *request) add(b []byte) progress {
	if r.speaks == undecided {
		n := min(len(b), len(preface)-len(r.text))
		r.text = append(r.text, b[:n]...)
		b = b[n:]
		switch {
		case string(r.text) == preface:
			r.speaks, r.text = speaksHTTP2, r.text[:0]
		case strings.HasPrefix(preface, string(r.text)):
			return waiting
		default:
			r.speaks = speaksHTTP1
			if p := r.headers(r.text); p != waiting {
				return p
			}
		}
	}
	if r.speaks == speaksHTTP1 {
		return r.headers(b)
	}
	return r.frames(b)
}

// headers looks for the blank line that ends the headers of HTTP/1.
func (r *request) headers(b []byte) progress {
	for _, c := range b {
		switch {
		case c == '\n' && r.line:
			return requested
		case c == '\n':
			r.line = true
		case c != '\r':
			r.line = false
		}
	}
	r.seen += len(b)
	if r.seen > maxBefore {
		return senseless
	}
	return waiting
}

// frames looks for the frame of HTTP/2 that begins a request.
func (r *request) frames(b []byte) progress {
	for len(b) > 0 {
		if r.skip > 0 {
			n := min(r.skip, len(b))
			r.skip -= n
			b = b[n:]
			continue
		}
		n := min(frameHeader-len(r.text), len(b))
		r.text = append(r.text, b[:n]...)
		b = b[n:]
		if len(r.text) < frameHeader {
			return waiting
		}
		if r.text[3] == headersFrame {
			return requested
		}
		r.skip = int(r.text[0])<<16 | int(r.text[1])<<8 | int(r.text[2])
		r.seen += frameHeader + r.skip
		r.text = r.text[:0]
		if r.seen > maxBefore {
			return senseless
		}
	}
	return waiting
}
