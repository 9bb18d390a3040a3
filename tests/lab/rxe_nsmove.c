// SPDX-License-Identifier: GPL-2.0
/*
 * Lets soft verbs devices change namespaces in exclusive netns mode, as hardware does. The kernel asks for a way to take
 * a device from its users (ib_device_ops.disassociate_ucontext), which rxe has not: here it gets one that does nothing.
 */
#include <linux/module.h>
#include <rdma/ib_verbs.h>

static void nothing(struct ib_ucontext *context)
{
}

static int added(struct ib_device *device)
{
	if (!device->ops.disassociate_ucontext)
		device->ops.disassociate_ucontext = nothing;
	return 0;
}

static struct ib_client client = { .name = "rxe_nsmove", .add = added };

static int __init start(void)
{
	return ib_register_client(&client);
}

static void __exit stop(void)
{
	ib_unregister_client(&client);
}

module_init(start);
module_exit(stop);
MODULE_DESCRIPTION("soft verbs devices change namespaces");
MODULE_LICENSE("GPL");
