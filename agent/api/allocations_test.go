package api

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestLogStreamsAreBounded(t *testing.T) {
	s := New(nil, nil)
	for range maxLogs {
		s.logs <- struct{}{}
	}
	if err := s.Logs(nil, nil); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one more: %v", err)
	}
}
