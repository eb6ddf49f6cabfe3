#!/usr/bin/env python
# coding: utf-8

# # Training

# In[1]:


get_ipython().system('pip install tabulate')
get_ipython().run_line_magic('matplotlib', 'inline')


# In[2]:


from tabulate import tabulate


# In[3]:


print(tabulate([[1]]))
