package eventlog

import (
	"bytes"
	"compress/flate"
	"fmt"
	"io"
	"sync"

	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// packFrom is the size of the texts from which on they are compressed.
	packFrom = 512
	// maxTexts bounds the texts of a record before the compression.
	maxTexts = 2 << 20
)

// deflater is a compressor, with memory for what it compresses.
type deflater struct {
	w     *flate.Writer
	plain []byte
}

// deflaters are compressors that are used again, because one takes about a megabyte.
var deflaters = sync.Pool{New: func() any {
	w, err := flate.NewWriter(nil, flate.BestSpeed)
	if err != nil {
		panic(err) // only for an unknown level
	}
	return &deflater{w: w}
}}

// packTexts compresses the texts of a record if that makes the record smaller.
func packTexts(rec *nusav1.EventRecord, size int) {
	if size < packFrom || size > maxTexts {
		return
	}
	d := deflaters.Get().(*deflater)
	defer deflaters.Put(d)
	plain, err := proto.MarshalOptions{}.MarshalAppend(d.plain[:0], &nusav1.EventRecord{Texts: rec.GetTexts()})
	if err != nil {
		return // texts that are not UTF-8 cannot be stored in either form
	}
	d.plain = plain
	out := bytes.NewBuffer(make([]byte, 0, len(plain)/2))
	d.w.Reset(out)
	if _, err = d.w.Write(plain); err == nil {
		err = d.w.Close()
	}
	if err == nil && out.Len() < len(plain) {
		rec.Texts, rec.Packed = nil, out.Bytes()
	}
}

// textsOf returns the texts of a record.
func textsOf(rec *nusav1.EventRecord) ([]string, error) {
	if len(rec.GetPacked()) == 0 {
		return rec.GetTexts(), nil
	}
	r := flate.NewReader(bytes.NewReader(rec.GetPacked()))
	plain, err := io.ReadAll(io.LimitReader(r, maxTexts+1))
	if err != nil || len(plain) > maxTexts {
		return nil, fmt.Errorf("%w: its compressed texts: %d bytes, %v", ErrRecord, len(plain), err)
	}
	texts := new(nusav1.EventRecord)
	if err := proto.Unmarshal(plain, texts); err != nil {
		return nil, fmt.Errorf("%w: its compressed texts: %w", ErrRecord, err)
	}
	return texts.GetTexts(), nil
}
