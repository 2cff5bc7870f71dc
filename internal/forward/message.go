package forward

import (
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// messages returns constructors of the request and the reply of a full method, for example
// "/nusa.v1.Jobs/Get".
func messages(fullMethod string) (newRequest, newReply func() proto.Message, err error) {
	service, method, _ := strings.Cut(strings.TrimPrefix(fullMethod, "/"), "/")
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
	if err != nil {
		return nil, nil, status.Errorf(codes.Unimplemented, "forward %s: %v", fullMethod, err)
	}
	sd, ok := d.(protoreflect.ServiceDescriptor)
	if !ok {
		return nil, nil, status.Errorf(codes.Unimplemented, "forward %s: not a service", fullMethod)
	}
	md := sd.Methods().ByName(protoreflect.Name(method))
	if md == nil {
		return nil, nil, status.Errorf(codes.Unimplemented, "forward %s: no such method", fullMethod)
	}
	if newRequest, err = constructor(md.Input()); err != nil {
		return nil, nil, err
	}
	newReply, err = constructor(md.Output())
	return newRequest, newReply, err
}

func constructor(d protoreflect.MessageDescriptor) (func() proto.Message, error) {
	t, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		return nil, fmt.Errorf("forward: message %s: %w", d.FullName(), err)
	}
	return func() proto.Message { return t.New().Interface() }, nil
}
