"""Chat templates in the manner of the known model families, written for these tests with the tiny base's tokens.

`<|im_end|>` ends a turn and is special in the tiny tokenizer; other markers are plain text.
"""

from __future__ import annotations

# ChatML with a system prompt of its own when the row has none.
CHATML = """\
{%- if messages[0].role != 'system' %}<|im_start|>system
You are helpful.<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

# The same with generation marks around what the assistant produces.
MARKED = """\
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.role == 'assistant' %}{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}
{% else %}{{ message.content }}<|im_end|>{% endif %}

{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

# As Llama 3 does it: bos first, headers, trimmed content, no line end after a turn.
HEADERS = """\
{{- bos_token }}
{%- for message in messages %}
{{- '[' + message.role + ']\\n\\n' }}{{ message.content | trim }}{{ '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '[assistant]\\n\\n' }}{% endif %}"""

# As the first Llama 3 template does it: the generation prompt stands at the end of every text, asked for or not.
TRAILING = """\
{{- bos_token }}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n\\n' }}{{ message.content | trim }}{{ '<|im_end|>' }}
{%- endfor %}
{{- '<|im_start|>assistant\\n\\n' }}"""

# As Mistral does it: no generation prompt, tools in front of the last question, so that prefixes differ.
INST = """\
{{- bos_token }}
{%- set last = namespace(user=-1) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set last.user = loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}
  {%- if message.role == 'user' %}
    {%- if tools and loop.index0 == last.user %}{{ '[TOOLS]' + (tools | tojson) + '[/TOOLS]' }}{% endif %}
    {{- '[INST] ' + message.content + '[/INST]' }}
  {%- elif message.role == 'tool' %}{{ '[RESULT]' + message.content + '[/RESULT]' }}
  {%- elif message.tool_calls %}{{ '[CALLS]' }}
    {%- for call in message.tool_calls %}{{ call.function | tojson }}{% endfor %}{{ eos_token }}
  {%- elif message.role == 'assistant' %}{{ ' ' + message.content + eos_token }}
  {%- else %}{{ raise_exception('Only user, assistant and tool turns are supported') }}
  {%- endif %}
{%- endfor %}"""

# As Gemma does it: another name for the assistant, turns must alternate, no system turn.
MODEL = """\
{{- bos_token }}
{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}
  {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
    {{- raise_exception('Roles must alternate: ' + message.role) }}
  {%- endif %}
  {{- '<start>' + ('model' if message.role == 'assistant' else message.role) + '\\n' }}
  {{- message.content | trim + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start>model\\n' }}{% endif %}"""

# As Qwen 3 does it: reasoning is cut before the last question, and an empty block marks its absence after it.
REASONING = """\
{%- if tools %}{{ '<|im_start|>system\\n' }}
  {%- for tool in tools %}{{ tool | tojson }}{% endfor %}{{ '<|im_end|>\\n' }}
{%- endif %}
{%- set last = namespace(query=messages | length - 1) %}
{%- for message in messages[::-1] %}
  {%- set index = messages | length - 1 - loop.index0 %}
  {%- if message.role == 'user' and last.query == messages | length - 1 %}{% set last.query = index %}{% endif %}
{%- endfor %}
{%- for message in messages %}
  {%- if message.role == 'assistant' %}
    {%- set reasoning = message.reasoning_content or '' %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if loop.index0 > last.query and (loop.last or reasoning) %}
      {{- '<think>\\n' + reasoning + '\\n</think>\\n\\n' }}
    {%- endif %}
    {{- message.content }}
    {%- for call in message.tool_calls or [] %}
      {{- '\\n<tool_call>' + call.function | tojson + '</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
  {%- else %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

# As R1 does it: the generation prompt opens a reasoning block that finished turns do not have.
OPENED = """\
{%- for message in messages %}<|im_start|>{{ message.role }}<|im_end|>
{{- message.content.split('</think>')[-1] }}<|im_end|>
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant<|im_end|><think>
{% endif %}"""

# Takes content as a list of parts only.
PARTS = """\
{%- for message in messages %}<|im_start|>{{ message.role }}
{% for part in message.content %}{{ part.text }}{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

# No special token ends a turn.
BARE = """\
{%- for message in messages %}{{ message.role | title }}: {{ message.content }}
{% endfor %}
{%- if add_generation_prompt %}Assistant: {% endif %}"""
