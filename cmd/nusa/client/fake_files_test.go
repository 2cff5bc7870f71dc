package client

import (
	"context"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// The server of the test for restarts, signals and files. The task log takes part, the task
// idle does not run.

func (f allocServer) Restart(_ context.Context, r *nusav1.RestartAllocationRequest) (*nusav1.RestartAllocationResponse, error) {
	if r.GetTask() == "idle" {
		return nil, status.Error(codes.FailedPrecondition, "task idle does not run")
	}
	return &nusav1.RestartAllocationResponse{Allocation: r.GetAllocation(), Tasks: []string{"log", "server"}}, nil
}

func (f allocServer) Signal(_ context.Context, r *nusav1.SignalAllocationRequest) (*nusav1.SignalAllocationResponse, error) {
	if r.GetSignal() == "WRONG" {
		return nil, status.Error(codes.InvalidArgument, `signal: "WRONG" is not the name of a signal, such as SIGHUP or USR1`)
	}
	return &nusav1.SignalAllocationResponse{Allocation: r.GetAllocation(), Tasks: []string{r.GetTask()}}, nil
}

// files are the files of each allocation.
var files = map[string]string{"shared/out.log": "line 1\nline 2\n", "tasks/server/app.conf": "port = 1\n"}

func (f allocServer) ListFiles(_ context.Context, r *nusav1.ListFilesRequest) (*nusav1.ListFilesResponse, error) {
	folder := func(name string) *nusav1.FileInfo {
		return &nusav1.FileInfo{Name: name, Mode: "drwxr-xr-x", Folder: true, Modified: timestamppb.New(time.Now().Add(-time.Hour))}
	}
	file := func(name, path string) *nusav1.FileInfo {
		return &nusav1.FileInfo{Name: name, Mode: "-rw-r--r--", Size: int64(len(files[path])), Modified: timestamppb.New(time.Now().Add(-time.Minute))}
	}
	switch p := strings.Trim(r.GetPath(), "/"); p {
	case ".", "":
		return &nusav1.ListFilesResponse{File: folder("."), Entries: []*nusav1.FileInfo{folder("shared"), folder("tasks")}}, nil
	case "shared":
		return &nusav1.ListFilesResponse{File: folder(p), Entries: []*nusav1.FileInfo{
			file("out.log", "shared/out.log"), {Name: "pipe", Mode: "prw-r--r--", Modified: timestamppb.New(time.Now().Add(-time.Hour))}}}, nil
	case "shared/bad":
		return &nusav1.ListFilesResponse{File: folder(p), Entries: []*nusav1.FileInfo{file("../out.log", "shared/out.log")}}, nil
	default:
		if files[p] == "" {
			return nil, status.Errorf(codes.NotFound, "file %s: does not exist", p)
		}
		return &nusav1.ListFilesResponse{File: file(p, p)}, nil
	}
}

func (f allocServer) ReadFile(r *nusav1.ReadFileRequest, s grpc.ServerStreamingServer[nusav1.FileChunk]) error {
	text := files[r.GetPath()]
	if text == "" {
		return status.Errorf(codes.NotFound, "file %s: does not exist", r.GetPath())
	}
	if err := s.Send(&nusav1.FileChunk{File: &nusav1.FileInfo{Size: int64(len(text))}}); err != nil {
		return err
	}
	text = text[min(int(r.GetOffset()), len(text)):]
	if n := int(r.GetLimit()); n > 0 {
		text = text[:min(n, len(text))]
	}
	return s.Send(&nusav1.FileChunk{Data: []byte(text)})
}
